"""Pretraining objectives on one text: what training would hide from the model, and what the model makes of it."""
