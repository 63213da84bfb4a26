"""Commands over checkpoints."""
