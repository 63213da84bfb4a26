"""Masked language modeling on one text: the corrupted tokens, and the loss of each target."""

import math
from dataclasses import replace

import numpy as np
import torch

from unmask.base.arguments import whole_number
from unmask.engines.engine import Engine
from unmask.errors import not_finite
from unmask.spec.encoder import masked_lm_role
from unmask.tasks.fill import Prediction
from unmask.text import Encoding, Tokenizer
from unmask.text.masking import spellings
from unmask.training.objectives.masked import masked_example, wrap
from unmask.training.objectives.masking import MaskingSpec, mask_tokens
from unmask.training.view.text import draw_of, frequency_losses, text_chunk, vocabulary_of
from unmask.training.view.values import Corruption, EpochTargets, MaskedToken, MaskedView, MaskEpochs

MOST_EPOCHS = 1000


def masked_view(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    *,
    masking: MaskingSpec | None = None,
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
    masking = masking or MaskingSpec()
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
    masking: MaskingSpec | None = None,
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
    masking = masking or MaskingSpec()
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
