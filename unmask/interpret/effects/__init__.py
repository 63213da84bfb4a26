"""Interventions: targets, intervention runs, and ablation of heads and edges."""
