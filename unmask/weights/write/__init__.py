"""Checkpoints written: saved, converted, created from settings, and described for other libraries."""
