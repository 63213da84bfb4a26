"""Linguistic probes of encoders: minimal pairs, masked words of held-out text, parts of speech.

Each probe reads its data files as released by their authors, optionally compressed with xz.
"""
