"""Pretraining objectives on one text: what training hides, and what the model makes of it."""
