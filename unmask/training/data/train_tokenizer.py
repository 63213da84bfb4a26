"""Train tokenizers: WordPiece, byte-level BPE and unigram, each with the rules of a model family."""

import importlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from unmask.base.optional import require
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.sources import SourceSpec, documents

Kind = Literal["wordpiece", "bpe", "unigram"]

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""In the order of their ids, which start at 0."""

MAX_LETTERS = 1000
"""Maximum number of characters in a WordPiece vocabulary; words with rarer ones are unknown."""

CHUNK_CHARACTERS = 2**14
"""Approximate size of the parts that a sample takes or skips."""


def train_tokenizer(
    texts: Iterable[str],
    kind: Kind,
    vocabulary_size: int,
    *,
    lowercase: bool | None = None,
    add_prefix_space: bool = False,
    max_tokens: int | None = None,
    min_frequency: int = 2,
) -> dict[str, bytes]:
    """Learn a vocabulary from text.

    The special tokens [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4, a text is read as
    ``[CLS] A [SEP]`` and a pair as ``[CLS] A [SEP] B [SEP]`` with token type 1 for B.

    Training is deterministic: equal texts and settings give equal files.

    Args:
        texts: held in memory, except for BPE.
        kind: ``wordpiece`` with BERT's cleaning and splitting (Devlin et al. 2019); ``bpe`` over bytes with
            GPT-2's splitting and NFC (Radford et al. 2019), as ModernBERT has it; ``unigram`` with ALBERT's
            cleaning (Kudo 2018, Lan et al. 2020), trained by the `sentencepiece` package.
        vocabulary_size: ids, special tokens included; fewer if the text has no more.
        lowercase: None for the default: WordPiece and unigram lowercase, BPE does not.
        add_prefix_space: BPE reads the first word as if preceded by a space.
        max_tokens: maximum length of the model, for programs that truncate; unmask takes it from the spec.
        min_frequency: minimum frequency of a pair to be merged; not used by unigram.

    Returns:
        The contents of tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Raises:
        InvalidRequest: an unknown kind, or a vocabulary too small for the letters and special tokens.
        MissingExtra: the packages that train unigram are not installed.
    """
    if kind not in get_args(Kind):
        raise InvalidRequest(f"kind of tokenizer is {kind!r}; it can be {', '.join(get_args(Kind))}")
    least = len(SPECIAL_TOKENS) + (256 if kind == "bpe" else 1)
    if vocabulary_size <= least:
        raise InvalidRequest(
            f"vocabulary_size is {vocabulary_size}; {kind} needs more than {least} for its special "
            "tokens and letters"
        )
    if lowercase is None:
        lowercase = kind != "bpe"
    match kind:
        case "wordpiece":
            engine = _word_piece(list(texts), vocabulary_size, lowercase, min_frequency)
        case "bpe":
            engine = _byte_pair(texts, vocabulary_size, lowercase, add_prefix_space, min_frequency)
        case "unigram":
            engine = train_unigram(texts, vocabulary_size, lowercase, SPECIAL_TOKENS)
        case _:
            assert_never(kind)
    mask = AddedToken(SPECIAL_TOKENS["mask"], special=True, lstrip=kind != "wordpiece", normalized=False)
    engine.add_special_tokens([mask])
    _set_template(engine)
    wrong = [token for id, token in enumerate(SPECIAL_TOKENS.values()) if engine.token_to_id(token) != id]
    assert not wrong, f"{wrong} have other ids than they should"
    return {"tokenizer.json": engine.to_str(pretty=True).encode(), **_settings(max_tokens, mask)}


def sample(sources: Sequence[SourceSpec], base: Path, max_bytes: int) -> Iterator[str]:
    """Sample text from sources by weight, evenly spaced over each, about ``max_bytes`` of UTF-8 in total.

    Each source is read twice, first to measure its size. A source smaller than its share is used completely.
    """
    total = sum(spec.weight for spec in sources)
    for spec in sources:
        size = sum(len(chunk.encode()) for chunk in _chunks(documents(spec, base)))
        rate = min(1.0, max_bytes * spec.weight / total / max(1, size))
        for number, chunk in enumerate(_chunks(documents(spec, base))):
            if int((number + 1) * rate) > int(number * rate) or rate == 1.0:
                yield chunk


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        start = 0
        while start < len(text):
            stop = text.find("\n", start + CHUNK_CHARACTERS)
            stop = len(text) if stop < 0 else stop
            yield text[start:stop]
            start = stop


def _word_piece(texts: Sequence[str], size: int, lowercase: bool, min_frequency: int) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk"]))
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##")
    letters, inside = _letters(engine, texts)
    # The package numbers letters inside words in an order that changes from run to run, and breaks ties
    # # between merges by number; as special tokens they are numbered as given.
    first = [*SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in inside)]
    if size <= len(first) + len(letters):
        raise InvalidRequest(
            f"vocabulary_size is {size}; the letters and special tokens of this text are "
            f"{len(first) + len(letters)} pieces already"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        special_tokens=first,
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    state = json.loads(engine.to_str())
    state["added_tokens"] = state["added_tokens"][: len(SPECIAL_TOKENS)]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _letters(engine: tokenizers.Tokenizer, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The most frequent characters of normalized text, and those of them that occur inside words."""
    counts: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        clean = engine.normalizer.normalize_str(text)
        counts.update(clean)
        pairs.update(pairwise(clean))
    ranked = sorted((letter for letter in counts if not letter.isspace()), key=lambda x: (-counts[x], x))
    letters = sorted(ranked[:MAX_LETTERS])
    alphabet = set(letters)
    inside = {
        second
        for first, second in pairs
        if second in alphabet
        and len(engine.pre_tokenizer.pre_tokenize_str(first + second)) == 1
        # A space disappears and leaves one word too.
        and not first.isspace()
    }
    return letters, sorted(inside)


def _byte_pair(
    texts: Iterable[str], size: int, lowercase: bool, add_prefix_space: bool, min_frequency: int
) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.BPE())
    steps: list[Any] = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    engine.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    return engine


def _set_template(engine: tokenizers.Tokenizer) -> None:
    cls, sep = SPECIAL_TOKENS["cls"], SPECIAL_TOKENS["sep"]
    engine.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, engine.token_to_id(token)) for token in (cls, sep)],
    )


def _settings(max_tokens: int | None, mask: AddedToken) -> dict[str, bytes]:
    """The two additional files with which other programs can load tokenizer.json."""
    roles = {f"{role}_token": token for role, token in SPECIAL_TOKENS.items()}
    config: dict[str, Any] = roles | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if max_tokens is not None:
        config["model_max_length"] = max_tokens
    flags = {name: getattr(mask, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    tokens = roles | {"mask_token": {"content": mask.content, **flags}}
    return {
        name: (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
        for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", tokens))
    }


THREADS = 4
"""Sums are accumulated per thread, so the number of threads affects the last digits of the scores."""


def train_unigram(
    texts: Iterable[str], size: int, lowercase: bool, special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Train a unigram vocabulary (Kudo 2018) with ALBERT's normalization (Lan et al. 2020).

    Args:
        texts: each line is a sentence.
        size: maximum vocabulary size, special tokens included.
        lowercase: whether to lowercase text.
        special: the token of each role, in the order of ids.

    Raises:
        InvalidRequest: ``size`` is too small for the letters of the text, or there is no text.
        MissingExtra: the packages are not installed.
    """
    require("sentencepiece")
    trainer = importlib.import_module("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    try:
        trainer.train(
            sentence_iterator=_lines(texts, lowercase=lowercase),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=special["pad"],
            unk_piece=special["unk"],
            control_symbols=[special["cls"], special["sep"], special["mask"]],
            max_sentence_length=2**30,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        raise InvalidRequest(f"no unigram vocabulary of {size} tokens can be trained: {reason}") from None
    config = {
        "tokenizer_class": "AlbertTokenizer",
        "do_lower_case": lowercase,
        **{f"{role}_token": token for role, token in special.items()},
    }
    files = {"spiece.model": model.getvalue(), "tokenizer_config.json": json.dumps(config).encode()}
    return Tokenizer.from_files(files).engine


def _lines(texts: Iterable[str], *, lowercase: bool) -> Iterator[str]:
    """Sentences, normalized as the tokenizer will normalize them."""
    steps = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
        *([normalizers.Lowercase()] if lowercase else []),
    ]
    clean = normalizers.Sequence(steps)
    for text in texts:
        yield from (clean.normalize_str(line) for line in text.splitlines() if line.strip())
