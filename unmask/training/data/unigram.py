"""Unigram vocabularies with ALBERT's normalization, trained by the `sentencepiece` package.

The trainer of the `tokenizers` package is not deterministic; this one is.
"""

import importlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from tokenizers import normalizers

from unmask.base.optional import require
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer

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
