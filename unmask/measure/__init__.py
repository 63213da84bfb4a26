"""Figures about encoders: speed, memory, agreement with others, and what a number format costs.

Whoever measures needs torch, so each protocol is named by its own module in `unmask.measure.bench`.
"""
