"""Architecture ablations of small encoders: one change at a time, all else equal."""
