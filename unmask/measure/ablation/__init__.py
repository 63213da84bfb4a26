"""Designs of small encoders as a controlled experiment: one change at a time, all else equal."""
