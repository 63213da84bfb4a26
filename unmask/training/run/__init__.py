"""The loop of every training run: steps, checkpoints, ranks, state, the log and the stop."""
