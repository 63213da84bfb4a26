"""Weights that come with unmask: folders that `unmask.load` reads by name."""
