"""Measuring: metrics, reproductions, benchmarks."""
