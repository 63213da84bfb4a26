"""Pretraining: objectives for any encoder, data streams, optimisers, and a loop that resumes exactly."""
