"""The algorithms, each one file that reads like its paper's box. To add one, add a file
and its name here.

A file has `Config`, its messages, its roles, `train` and `predict`, and ends in its
record, `ALGORITHM`, which says everything about it that others need to know
(`algorithm.py`).
"""

from colonnade.algorithms.algorithm import Algorithm, Kind, Records, Release

__all__ = ["ALGORITHMS", "DEFAULT", "Algorithm", "Kind", "Records", "Release", "find"]

ALGORITHMS = Records(
    __name__,
    *(
        "splitnn",
        "vafl",
        "fdml",
        "vimsgd",
        "vimadmm",
        "vimadmm_joint",
        "compressed_vfl",
        "vfedcce",
        "boosted_trees",
    ),
    *("logistic_regression", "knn", "one_shot", "multi_vfl"),
)
DEFAULT = "splitnn"
"""The algorithm that is trained where nobody chose. `colonnade bench defaults` compares
it with others by validation rows."""
find = ALGORITHMS.find
