"""Which head of an encoder a task reads, by its role."""

from unmask.errors import InvalidRequest
from unmask.spec.encoder import EncoderSpec
from unmask.spec.heads import Classifier, Head, role_of


def head_of(spec: EncoderSpec, role: str) -> Head:
    """The head with that role.

    Raises:
        InvalidRequest: the encoder has no such head.
    """
    heads = {role_of(head): head for head in spec.heads}
    if role not in heads:
        raise InvalidRequest(f"the encoder has no {role} head; it has: {', '.join(heads) or 'none'}")
    return heads[role]


def masked_lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the MLM head of an encoder that predicts masked words.

    Raises:
        InvalidRequest: the encoder has no such head, or its attention is causal.
    """
    require_both_directions(spec, name)
    return lm_role(spec, name)


def lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the head over the vocabulary: ``masked`` if there is one, else ``enhanced``.

    Raises:
        InvalidRequest: the encoder has neither.
    """
    roles = [role_of(head) for head in spec.heads]
    role = next((role for role in ("masked", "enhanced") if role in roles), None)
    if role is None:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its checkpoint holds no masked-LM head "
            f"(heads: {', '.join(roles) or 'none'}); use a checkpoint that was saved with one"
        )
    return role


def require_both_directions(spec: EncoderSpec, name: str = "the model") -> None:
    """Refuse an encoder that sees no later token: its logits at a token are those of the next one.

    Raises:
        InvalidRequest: the attention of all layers is causal.
    """
    if spec.causal:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its attention is causal (is_decoder in config.json), so it "
            "predicts the next token; use predict_tokens (unmask compare), or another checkpoint"
        )


def is_per_token(head: Head) -> bool:
    """Whether a head gives logits for every token, rather than for a sequence."""
    return not isinstance(head, Classifier) or head.reads in ("tokens", "tokens_and_first")


def logit_count(spec: EncoderSpec, head: Head) -> int:
    """C, the number of logits of one token or sequence."""
    return head.classes if isinstance(head, Classifier) else spec.embedding.vocabulary
