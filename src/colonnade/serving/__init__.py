"""Predictions over HTTP, at the label owner: `colonnade serve DIR`."""
