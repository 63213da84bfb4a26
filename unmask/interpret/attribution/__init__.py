"""Attention rollout and gradient attribution."""
