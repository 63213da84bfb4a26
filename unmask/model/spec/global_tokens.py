"""Which tokens of a text are global, in encoders whose reach has such tokens; decided by the task.

As the authors of Longformer do it, and the classes of `transformers`: the first token for what is said of
a whole text, the question's tokens for answers, none for masked words and for classes of tokens (Beltagy,
Peters & Cohan 2020). For embeddings, of which the authors say nothing, it is the first token: the state of
the whole text. `sentence-transformers` marks none; ``"none"`` gives its embeddings.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from unmask.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.model.spec.attention import SlidingWindowGlobal, SoftmaxAttention
from unmask.model.spec.encoder import EncoderSpec
from unmask.model.spec.heads import role_of
from unmask.text.batch import PackedBatch
from unmask.text.encoding import Encoding

GlobalTokens = Literal["none", "first", "question"] | Callable[[Encoding], Sequence[int]]
"""No token; the first; all of a pair before the separator that ends its first text; or a function that
gives the places of a text's global tokens, counted from its beginning."""

BY_ROLE: dict[str, GlobalTokens] = {"span": "question", "masked": "none", "tokens": "none"}
"""What the heads of published checkpoints were trained with; the others with the first token."""


def check_global_tokens(choice: object) -> None:
    """Raise `InvalidRequest` unless it is a `GlobalTokens`."""
    if not callable(choice):
        check_choice("global_tokens", choice, ("none", "first", "question"))


def has_global_tokens(spec: EncoderSpec) -> bool:
    """Whether a layer of this encoder has a use for global tokens."""
    softmax = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    return any(isinstance(mixer.pattern, SlidingWindowGlobal) for mixer in softmax)


def trained_global_tokens(spec: EncoderSpec, *, paired: bool) -> GlobalTokens:
    """What the encoder's first head was trained with; ``"first"`` where it has no head.

    One text alone (not ``paired``) holds no question, so a head for answers has no global token there.
    """
    choice = BY_ROLE.get(role_of(spec.heads[0]), "first") if spec.heads else "first"
    return "none" if choice == "question" and not paired else choice


def places(encoding: Encoding, choice: GlobalTokens) -> Sequence[int]:
    """The places of the global tokens of one text.

    Raises:
        InvalidRequest: the question is asked for, and there is one text alone; or there is no such choice.
    """
    match choice:
        case "none":
            return ()
        case "first":
            return (0,)
        case "question":
            if encoding.pair is None:
                raise InvalidRequest("the question's tokens are to be global, and one text alone was given")
            asked = [token for token in range(len(encoding)) if encoding.sequence_ids[token] != 1]
            words = [token for token in asked if not encoding.special[token]]
            return range(max(words, default=0) + 1)
        case _:
            check_global_tokens(choice)
            return choice(encoding)


def pack(spec: EncoderSpec, encodings: Sequence[Encoding], choice: GlobalTokens) -> PackedBatch:
    """Encoded texts as a batch for this encoder, with their global tokens if it has a use for any."""
    return PackedBatch.of_ids(
        [encoding.ids for encoding in encodings],
        [encoding.token_type_ids for encoding in encodings],
        [places(encoding, choice) for encoding in encodings] if has_global_tokens(spec) else None,
    )
