"""The fingerprint of a run: what its results depend on."""

import hashlib

from unmask.weights.read.checkpoint import Checkpoint


def fingerprint(checkpoint: Checkpoint, settings: object) -> str:
    """Digest of the weights and settings of a run, as 64 hexadecimal digits."""
    adapter = checkpoint.adapter
    read = (checkpoint.spec, checkpoint.max_tokens, adapter and adapter.scale, settings)
    digest = hashlib.sha256(repr(read).encode())
    for path in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    for _, content in sorted(checkpoint.tokenizer.files.items()):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
