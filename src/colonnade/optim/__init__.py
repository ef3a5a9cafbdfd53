"""Losses, proximal steps, and the optimizer of local steps."""
