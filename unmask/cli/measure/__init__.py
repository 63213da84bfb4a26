"""Commands that measure models, and that list what there is."""
