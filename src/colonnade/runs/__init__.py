"""A run on disk: its layout, its checkpoints, and what its rows paid over all runs."""
