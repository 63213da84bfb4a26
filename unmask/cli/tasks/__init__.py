"""Commands that use a model on texts."""
