"""The digest of everything in a checkpoint that results depend on, by which a stopped run knows its own."""

import hashlib
from dataclasses import fields, is_dataclass

from unmask.weights.read.checkpoint import Checkpoint


def fingerprint(checkpoint: Checkpoint, settings: object) -> str:
    """Digest of what results of a run depend on, as 64 hexadecimal digits: weights, tokenizer and settings.

    Fields at their defaults do not count, so that a field which a later version adds changes nothing.
    """
    heads = (checkpoint.head, checkpoint.label_head, checkpoint.class_head)
    parts = (checkpoint.spec, checkpoint.max_tokens, heads, checkpoint.unpooled_id, checkpoint.task)
    scale = checkpoint.adapter and checkpoint.adapter.scale
    digest = hashlib.sha256(_described((*parts, scale, settings)).encode("utf-8", "surrogatepass"))
    stored = (checkpoint.tensors, checkpoint.output_tensors, checkpoint.label_tensors)
    for path in sorted({tensor.file for tensors in stored for tensor in tensors.values()}):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    if checkpoint.query_weights is not None:
        digest.update(checkpoint.query_weights.tobytes())
    for _, content in sorted(checkpoint.tokenizer.files.items()):
        digest.update(hashlib.sha256(content).digest())
    if checkpoint.schema_head is not None:
        digest.update(_described(checkpoint.schema_head).encode())
    if checkpoint.pruning is not None:
        digest.update(_described(checkpoint.pruning).encode())
    if checkpoint.label_encoder is not None:
        digest.update(fingerprint(checkpoint.label_encoder, ()).encode())
    return digest.hexdigest()


def _described(value: object) -> str:
    """The text of a value, without the fields of its parts that are at their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        listed = [(part, getattr(value, part.name)) for part in fields(value) if part.repr]
        changed = ", ".join(f"{part.name}={_described(x)}" for part, x in listed if x != part.default)
        return f"{type(value).__name__}({changed})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_described, value))}]"
    return repr(value)
