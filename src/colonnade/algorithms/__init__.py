"""The algorithms, each one file that reads like its paper's box. To add one, add a file,
and its settings to `settings.algorithms`.

A file has `Config`, its messages, its roles, `train` and `predict`, and ends in its
record, `ALGORITHM`, which says everything about it that others need to know
(`algorithm.py`).
"""

from colonnade.algorithms.algorithm import Algorithm, Kind, Records, Release
from colonnade.settings.algorithms import ALGORITHM_SETTINGS

__all__ = ["ALGORITHMS", "Algorithm", "Kind", "Records", "Release", "find"]

ALGORITHMS = Records(__name__, *ALGORITHM_SETTINGS)
find = ALGORITHMS.find
