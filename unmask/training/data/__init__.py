"""From text to tokens on disk to micro-batches of whole chunks."""
