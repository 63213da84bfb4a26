"""One training step on one or two texts: what is masked, replaced or exchanged, and each loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from unmask.base.arguments import whole_number
from unmask.encoder.encoder import Encoder
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest, TextTooLong, not_finite
from unmask.interpret.corpus.texts import corpus_of
from unmask.spec import Classifier, EncoderSpec, role_of
from unmask.spec.encoder import head_of, masked_lm_role
from unmask.tasks.fill import Prediction
from unmask.text import Encoding, PackedBatch, Tokenizer
from unmask.text.tokenizer import spellings
from unmask.training.data.stream import Chunk
from unmask.training.objectives.generator import is_detector
from unmask.training.objectives.language_modeling import masked_example, wrap
from unmask.training.objectives.masking import MaskingSpec, mask_tokens
from unmask.training.objectives.replaced import ReplacedSpec, propose, replaced_example
from unmask.training.objectives.sentence_pairs import PairedSentences, PairTask, wrap_pairs
from unmask.training.table import read_table
from unmask.training.view.values import (
    Corruption,
    EpochTargets,
    MaskedToken,
    MaskedView,
    MaskEpochs,
    PairOrder,
    ReplacedToken,
    ReplacedView,
    SentencePairView,
)
from unmask.training.vocabulary import Vocabulary

_VOCABULARIES: "WeakKeyDictionary[Tokenizer, Vocabulary]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class TextChunk:
    """A text without the special tokens that its tokenizer adds, and where its tokens are from."""

    chunk: Chunk
    encoding: Encoding
    places_N: NDArray[np.int64]
    """For each token of [CLS] chunk [SEP], its position in the encoding."""


def text_chunk(encoding: Encoding) -> TextChunk:
    """The tokens between the first and the last that belong to the text.

    Raises:
        InvalidRequest: the text has no token.
    """
    own_tokens = np.flatnonzero(~encoding.special)
    if not len(own_tokens):
        raise InvalidRequest("the text has no token that could be predicted; give one that is not empty")
    first, stop = int(own_tokens[0]), int(own_tokens[-1]) + 1
    return TextChunk(Chunk(encoding.ids[first:stop], 0), encoding, np.arange(first - 1, stop + 1))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What objectives know of the tokenizer, worked out once.

    Raises:
        InvalidRequest: it has no CLS, SEP or mask token.
    """
    vocabulary = _VOCABULARIES.get(tokenizer)
    if vocabulary is None:
        vocabulary = _VOCABULARIES[tokenizer] = Vocabulary.of(tokenizer)
    return vocabulary


def draw_of(seed: int, epoch: int) -> np.random.Generator:
    """What all random choices of one epoch are drawn from."""
    return np.random.default_rng(
        [whole_number("seed", seed, 0, 2**63 - 1), whole_number("epoch", epoch, 1, 1_000_000)]
    )


_COUNTS: "WeakKeyDictionary[Tokenizer, NDArray[np.int64]]" = WeakKeyDictionary()


def frequency_losses(tokenizer: Tokenizer, ids_M: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """-log of the relative frequency of tokens, in nats, one added to the count of each of ``size`` tokens.

    The frequencies are those of 3,024 sentences of public-domain books.
    """
    counts_V = _COUNTS.get(tokenizer)
    if counts_V is None or len(counts_V) < size:
        texts = [text.text for text in corpus_of(None).texts]
        ids = np.concatenate([encoding.ids for encoding in tokenizer.encode_batch(texts)])
        special_V = vocabulary_of(tokenizer).special_V
        counts_V = np.bincount(ids[~special_V[ids]], minlength=size)
        _COUNTS[tokenizer] = counts_V
    losses_M: NDArray[np.float64] = -np.log((counts_V[ids_M] + 1) / (counts_V.sum() + size))
    return losses_M


MOST_EPOCHS = 1000


def _masking(masking: MaskingSpec | Mapping[str, Any] | None) -> MaskingSpec | None:
    """Settings that may be given by their names in a run file."""
    if masking is None or isinstance(masking, MaskingSpec):
        return masking
    return read_table(MaskingSpec, masking, "masking")


def masked_view(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    *,
    masking: MaskingSpec | Mapping[str, Any] | None = None,
    seed: int = 0,
    epoch: int = 1,
    top_k: int = 5,
    model: str = "the model",
) -> MaskedView:
    """What masked language modeling (Devlin et al. 2019) shows the model of a text, and its loss there.

    Tokens are chosen and corrupted by the functions that training uses. ``seed`` and ``epoch`` determine the
    draw. The model runs without dropout.

    Raises:
        InvalidRequest: the encoder has no masked-LM head, the tokenizer lacks a special token, or an argument
            is out of range.
        NonFiniteResult: a loss is infinity or NaN.
    """
    role = masked_lm_role(engine.spec, model)
    words = engine.spec.embedding.vocabulary
    top_k = whole_number("top_k", top_k, 1, words)
    vocabulary, text = vocabulary_of(tokenizer), text_chunk(encoding)
    masking = _masking(masking) or MaskingSpec()
    original = wrap([text.chunk], vocabulary)
    example = masked_example(original, vocabulary, masking, draw_of(seed, epoch), 0.0)
    logits_MV = torch.from_numpy(engine.logits(example.batch, role, example.chosen_M))
    log_p_MV = logits_MV.log_softmax(-1)
    own_M1 = log_p_MV.gather(1, torch.from_numpy(example.targets_M)[:, None])
    if not own_M1.isfinite().all():
        raise not_finite("the loss of a token", engine.dtype)
    ranks_M = 1 + (log_p_MV > own_M1).sum(-1)
    best = log_p_MV.topk(top_k)
    frequency_M = frequency_losses(tokenizer, example.targets_M, words)
    row_of = {place: row for row, place in enumerate(example.chosen_M.tolist())}
    tokens = []
    for at, (place, id, corrupted) in enumerate(
        zip(text.places_N.tolist(), original.ids_T.tolist(), example.batch.ids_T.tolist(), strict=True)
    ):
        start, end = _span(encoding, place)
        row = row_of.get(at)
        kind: Corruption = "none"
        if row is not None:
            kind = "masked" if corrupted == vocabulary.mask_id else "kept" if corrupted == id else "random"
        plain = MaskedToken(
            token=place,
            id=id,
            piece=spellings(tokenizer, id)[0],
            start=start,
            end=end,
            corrupted_id=corrupted,
            corrupted_piece=spellings(tokenizer, corrupted)[0],
            corruption=kind,
            loss=None,
            probability=None,
            rank=None,
            frequency_loss=None,
            predictions=None,
        )
        if row is not None:
            guesses = zip(best.indices[row].tolist(), best.values[row].exp().tolist(), strict=True)
            plain = replace(
                plain,
                loss=-float(own_M1[row]),
                probability=float(own_M1[row].exp()),
                rank=int(ranks_M[row]),
                frequency_loss=float(frequency_M[row]),
                predictions=tuple(Prediction(*spellings(tokenizer, id), id, p) for id, p in guesses),
            )
        tokens.append(plain)
    return MaskedView(seed, epoch, masking, tuple(tokens), math.log(words))


def _span(encoding: Encoding, place: int) -> tuple[int, int]:
    if not 0 <= place < len(encoding):
        return 0, 0
    start, end = encoding.offsets[place].tolist()
    return start, end


def mask_epochs(
    tokenizer: Tokenizer,
    encoding: Encoding,
    *,
    masking: MaskingSpec | Mapping[str, Any] | None = None,
    seed: int = 0,
    epochs: int = 10,
    static_masks: int = 10,
) -> MaskEpochs:
    """Which tokens are targets in epochs 1 to ``epochs``, with static and with dynamic masks.

    See Liu et al. (2019). Dynamic masks are those of `masked_view` for the same seed and epoch. With static
    masks a text has ``static_masks`` fixed masks (10 in BERT's data), one of which is drawn in every epoch.

    Raises:
        InvalidRequest: the tokenizer lacks a special token, or an argument is out of range.
    """
    epochs = whole_number("epochs", epochs, 1, MOST_EPOCHS)
    static_masks = whole_number("static_masks", static_masks, 1, MOST_EPOCHS)
    vocabulary, text = vocabulary_of(tokenizer), text_chunk(encoding)
    masking = _masking(masking) or MaskingSpec()
    batch = wrap([text.chunk], vocabulary)
    free = int((~vocabulary.special_V[batch.ids_T]).sum())

    def of(kind: str, spec: MaskingSpec) -> EpochTargets:
        targets, seen, ever = [], set[int](), []
        for epoch in range(1, epochs + 1):
            _, chosen_M = mask_tokens(batch.ids_T, batch.layout, spec, vocabulary, draw=draw_of(seed, epoch))
            targets.append(tuple(text.places_N[chosen_M].tolist()))
            seen.update(targets[-1])
            ever.append(len(seen) / free)
        return EpochTargets(kind, tuple(targets), tuple(ever), len(set(targets)))  # type: ignore[arg-type]

    return MaskEpochs(
        seed=seed,
        rate=masking.rate,
        static_masks=static_masks,
        first_token=int(text.places_N[0]),
        pieces=tuple(spellings(tokenizer, id)[0] for id in batch.ids_T.tolist()),
        static=of("static", replace(masking, static_masks=static_masks)),
        dynamic=of("dynamic", replace(masking, static_masks=0)),
        expected=tuple((1 - (1 - masking.rate) ** np.arange(1, epochs + 1)).tolist()),
    )


Source = Literal["generator", "reader", "nothing"]


def require_detector(spec: EncoderSpec, model: str = "the model") -> None:
    """Refuse an encoder without a head that detects replaced tokens."""
    if not any(is_detector(head) for head in spec.heads):
        has = ", ".join(map(role_of, spec.heads)) or "none"
        raise InvalidRequest(
            f"{model} cannot detect replaced tokens: its checkpoint holds no such head (heads: {has}); "
            "use the discriminator of an ELECTRA or a DeBERTa v3"
        )


def replaced_by_reader(
    engine: Engine,
    tokenizer: Tokenizer,
    original: Encoding,
    written: Encoding | None = None,
    *,
    model: str = "the model",
) -> ReplacedView:
    """What the detector says of a text that the reader changed; None changes nothing.

    Tokens of ``written`` that are not in the longest common parts of both texts count as replaced.

    Raises:
        InvalidRequest: the encoder has no such head.
        NonFiniteResult: a score is infinity or NaN.
    """
    require_detector(engine.spec, model)
    corrupted = original if written is None else written
    ids = corrupted.ids.tolist()
    before: list[int | None] = list(ids)
    matcher = SequenceMatcher(None, original.ids.tolist(), ids, autojunk=False)
    for kind, a, a_stop, b, b_stop in matcher.get_opcodes():
        if kind != "equal":
            old: list[int | None] = [*original.ids[a:a_stop].tolist()]
            before[b:b_stop] = (old + [None] * (b_stop - b))[: b_stop - b]
            if a_stop - a != b_stop - b:  # words of another number of tokens do not correspond one by one
                before[b:b_stop] = [None] * (b_stop - b)
    replaced_N = np.array([previous != id for previous, id in zip(before, ids, strict=True)])
    source: Source = "reader" if replaced_N.any() else "nothing"
    before_N = np.array([-1 if previous is None else previous for previous in before])
    step = _Step(0, 1, source, np.arange(len(corrupted)), before_N, corrupted.ids, replaced_N)
    return _view(engine, tokenizer, corrupted, step)


def replaced_by_generator(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    generator: Encoder,
    generator_tokenizer: Tokenizer,
    *,
    spec: ReplacedSpec | None = None,
    masking: MaskingSpec | Mapping[str, Any] | None = None,
    seed: int = 0,
    epoch: int = 1,
    model: str = "the model",
) -> ReplacedView:
    """One step of training (Clark et al. 2020) without its gradients: the generator samples words for masked
    tokens, and the detector judges every token.

    Raises:
        InvalidRequest: the encoder has no such head, or the generator has no masked-LM head or another
            vocabulary.
        NonFiniteResult: a score is infinity or NaN.
    """
    require_detector(engine.spec, model)
    if generator_tokenizer.engine.get_vocab() != tokenizer.engine.get_vocab():
        raise InvalidRequest(
            f"the generator's vocabulary is not that of {model}; name the generator that was trained with it"
        )
    spec = spec or ReplacedSpec()
    vocabulary, text = vocabulary_of(tokenizer), text_chunk(encoding)
    example = replaced_example(
        [text.chunk], vocabulary, _masking(masking) or spec.masking, draw_of(seed, epoch), progress=0.0
    )
    original_T = np.concatenate(([vocabulary.cls_id], text.chunk.ids, [vocabulary.sep_id]))
    with torch.inference_mode():
        _, _, words_M = propose(generator, example, spec)
    read_T, target_T = original_T.copy(), np.zeros(len(original_T), dtype=np.bool_)
    read_T[example.chosen_M] = words_M.cpu().numpy()
    target_T[example.chosen_M] = True
    step = _Step(seed, epoch, "generator", text.places_N, original_T, read_T, target_T)
    return _view(engine, tokenizer, encoding, step)


@dataclass(frozen=True, eq=False)
class _Step:
    """What a detector is shown."""

    seed: int
    epoch: int
    source: Source
    places_N: NDArray[np.int64]
    before_N: NDArray[np.int64]
    """The original tokens; -1 where a token stands for no single one."""
    read_N: NDArray[np.int64]
    target_N: NDArray[np.bool_]


def _view(engine: Engine, tokenizer: Tokenizer, encoding: Encoding, step: _Step) -> ReplacedView:
    replaced_N = step.read_N != step.before_N
    logits_N = torch.from_numpy(engine.logits(PackedBatch.of_ids([step.read_N]), "replaced")).squeeze(-1)
    if not logits_N.isfinite().all():
        raise not_finite("the score of a token", engine.dtype)
    truth_N = torch.from_numpy(replaced_N).to(logits_N.dtype)
    loss_N = functional.binary_cross_entropy_with_logits(logits_N, truth_N, reduction="none")
    tokens = []
    for at, (place, before, id) in enumerate(
        zip(step.places_N.tolist(), step.before_N.tolist(), step.read_N.tolist(), strict=True)
    ):
        start, end = encoding.offsets[place].tolist() if 0 <= place < len(encoding) else (0, 0)
        tokens.append(
            ReplacedToken(
                token=place,
                id=before,
                piece="" if before < 0 else spellings(tokenizer, before)[0],
                start=start,
                end=end,
                corrupted_id=id,
                corrupted_piece=spellings(tokenizer, id)[0],
                target=bool(step.target_N[at]),
                replaced=bool(replaced_N[at]),
                probability=float(logits_N[at].sigmoid()),
                loss=float(loss_N[at]),
            )
        )
    return ReplacedView(step.seed, step.epoch, step.source, encoding.text, tuple(tokens))


UNRELATED = 16
"""Unrelated sentences that the first text is paired with."""


def pair_task(spec: EncoderSpec, model: str = "the model") -> PairTask:
    """The sentence-pair task that the encoder has a head for.

    Raises:
        InvalidRequest: it has none.
    """
    roles = [role_of(head) for head in spec.heads]
    task = next((role for role in ("next_sentence", "sentence_order") if role in roles), None)
    head = None if task is None else head_of(spec, task)
    if not isinstance(head, Classifier) or head.classes != 2:
        raise InvalidRequest(
            f"{model} cannot judge two sentences: its checkpoint holds no next-sentence or sentence-order "
            f"head (heads: {', '.join(roles) or 'none'}); use a BERT or an ALBERT that was saved with it"
        )
    return cast(PairTask, task)


def sentence_pair_view(
    engine: Engine,
    tokenizer: Tokenizer,
    first: Encoding,
    second: Encoding,
    *,
    unrelated: int = UNRELATED,
    model: str = "the model",
) -> SentencePairView:
    """The probability that one text follows the other, in both orders, by the head of pretraining.

    The pairs are built by the function that training uses: [CLS] A [SEP] B [SEP].

    Raises:
        InvalidRequest: the encoder has no such head, or a text has no token.
        TextTooLong: both texts together have more tokens than the model reads.
        NonFiniteResult: a logit is infinity or NaN.
    """
    task = pair_task(engine.spec, model)
    unrelated = whole_number("unrelated", unrelated, 0, 1000)
    vocabulary = vocabulary_of(tokenizer)
    a, b = text_chunk(first).chunk.ids, text_chunk(second).chunk.ids
    limit = engine.spec.max_tokens
    if limit is not None and len(a) + len(b) + 3 > limit:
        raise TextTooLong(
            f"both texts have {len(a) + len(b) + 3} tokens together, and {model} reads {limit}; shorten one",
            original_tokens=len(a) + len(b) + 3,
            max_tokens=limit,
        )
    shown = {first.text.strip(), second.text.strip()}
    texts = [
        sentence.text for sentence in corpus_of(None).texts[: unrelated + 2] if sentence.text not in shown
    ][:unrelated]
    others = [encoding.ids[~encoding.special] for encoding in tokenizer.encode_batch(texts)] if texts else []
    room = len(a) + len(b) + max(map(len, others), default=0) if limit is None else limit - 3 - len(a)
    firsts = [a, b] + [a] * len(others)
    seconds = [b, a] + [ids_N[: max(1, room)] for ids_N in others]
    pairs = PairedSentences(firsts, seconds, np.zeros(len(firsts), dtype=np.int64), alone=0, cut_tokens=0)
    batch = wrap_pairs(pairs, vocabulary, typed=engine.spec.embedding.segments >= 2)
    logits_PC = torch.from_numpy(engine.logits(batch, task))
    if not logits_PC.isfinite().all():
        raise not_finite("the probability of a pair", engine.dtype)
    follows = logits_PC.softmax(-1)[:, 0].tolist()
    return SentencePairView(
        task=task,
        given=PairOrder(first.text, second.text, follows[0]),
        swapped=PairOrder(second.text, first.text, follows[1]),
        unrelated=tuple(PairOrder(first.text, text, p) for text, p in zip(texts, follows[2:], strict=True)),
    )
