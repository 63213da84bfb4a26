"""Figures of an analysis for papers, as vectors."""
