"""Which tokens of a text are global, in encoders whose attention pattern has global tokens; the task decides.

This follows the authors of Longformer and the classes of `transformers`: the first token for sequence
classification, the question's tokens for question answering, the choice's for multiple choice, none for
masked words and for token classification (Beltagy, Peters & Cohan 2020). For embeddings, which the authors do
not cover, it is the first token, the state of the whole text. `sentence-transformers` marks none; ``"none"``
gives its embeddings.
"""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.spec.attention import SlidingWindowGlobal, SoftmaxAttention
from unmask.spec.encoder import EncoderSpec
from unmask.spec.heads import role_of
from unmask.spec.roles import ROLES, NamedTokens
from unmask.text.batch import PackedBatch
from unmask.text.encoding import Encoding

GlobalTokens = NamedTokens | Callable[[Encoding], Sequence[int]]
"""A choice by its name, or a function that gives the positions of a text's global tokens."""


def check_global_tokens(choice: object) -> None:
    """Raise `InvalidRequest` unless it is a `GlobalTokens`."""
    if not callable(choice):
        check_choice("global_tokens", choice, get_args(NamedTokens))


def has_global_tokens(spec: EncoderSpec) -> bool:
    """Whether a layer of this encoder uses global tokens."""
    softmax = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    return any(isinstance(mixer.pattern, SlidingWindowGlobal) for mixer in softmax)


def trained_global_tokens(spec: EncoderSpec, *, paired: bool) -> GlobalTokens:
    """The global tokens that the encoder's first head was trained with; ``"first"`` if it has no head.

    A single text (not ``paired``) has no question, so a question-answering head has no global token there,
    nor has a multiple-choice head.
    """
    choice = ROLES[role_of(spec.heads[0])].global_tokens if spec.heads else "first"
    return "none" if choice in ("question", "second") and not paired else choice


def places(encoding: Encoding, choice: GlobalTokens) -> Sequence[int]:
    """The positions of the global tokens of one text.

    Raises:
        InvalidRequest: the question is requested for a single text, or there is no such choice.
    """
    match choice:
        case "none":
            return ()
        case "first":
            return (0,)
        case "question":
            if encoding.pair is None:
                raise InvalidRequest("the question's tokens are to be global, and only one text was given")
            asked = [token for token in range(len(encoding)) if encoding.sequence_ids[token] != 1]
            words = [token for token in asked if not encoding.special[token]]
            return range(max(words, default=0) + 1)
        case "second":
            if encoding.pair is None:
                raise InvalidRequest("the choice's tokens are to be global, and only one text was given")
            return range(int(np.argmax(encoding.sequence_ids == 1)), len(encoding))
        case _:
            check_global_tokens(choice)
            return choice(encoding)


def pack(spec: EncoderSpec, encodings: Sequence[Encoding], choice: GlobalTokens) -> PackedBatch:
    """Encoded texts as a batch for this encoder, with their global tokens if it uses any."""
    return PackedBatch.of_ids(
        [encoding.ids for encoding in encodings],
        [encoding.token_type_ids for encoding in encodings],
        [places(encoding, choice) for encoding in encodings] if has_global_tokens(spec) else None,
    )
