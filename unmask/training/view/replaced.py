"""Replaced-token detection on one text: what was replaced, and what the detector says of every token."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest, not_finite
from unmask.spec import EncoderSpec, role_of
from unmask.text import Encoding, PackedBatch, Tokenizer
from unmask.text.masking import spellings
from unmask.training.objectives.generator import is_detector
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import ReplacedSpec, propose, replaced_example
from unmask.training.view.text import draw_of, text_chunk, vocabulary_of
from unmask.training.view.values import ReplacedToken, ReplacedView

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
    read = original if written is None else written
    ids = read.ids.tolist()
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
    step = _Step(0, 1, source, np.arange(len(read)), before_N, read.ids, replaced_N)
    return _view(engine, tokenizer, read, step)


def replaced_by_generator(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    generator: Encoder,
    generator_tokenizer: Tokenizer,
    *,
    spec: ReplacedSpec | None = None,
    masking: MaskingSpec | None = None,
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
        [text.chunk], vocabulary, masking or spec.masking, draw_of(seed, epoch), progress=0.0
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
