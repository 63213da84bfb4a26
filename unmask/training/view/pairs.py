"""Next-sentence and sentence-order prediction on two texts of the reader."""

from typing import cast

import numpy as np
import torch

from unmask.base.arguments import whole_number
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest, TextTooLong, not_finite
from unmask.interpret.corpus.texts import corpus_of
from unmask.spec import Classifier, EncoderSpec, role_of
from unmask.spec.encoder import head_of
from unmask.text import Encoding, Tokenizer
from unmask.training.objectives.sentence_pairs import PairTask, wrap_pairs
from unmask.training.objectives.splitting import PairedSentences
from unmask.training.view.text import text_chunk, vocabulary_of
from unmask.training.view.values import PairOrder, SentencePairView

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
    known = {first.text.strip(), second.text.strip()}
    texts = [
        sentence.text for sentence in corpus_of(None).texts[: unrelated + 2] if sentence.text not in known
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
