"""Benchmarks of encoders: speed, memory, agreement with other libraries, and the accuracy of number formats.

Measuring needs torch, so each protocol is imported from its own module in `unmask.bench.speed`.
"""
