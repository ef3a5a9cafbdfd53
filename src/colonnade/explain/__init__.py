"""Which parties matter in a trained federation, how that is known, and pictures of it.

    federation = colonnade.load("run")
    report = explain(federation)                     # everything that needs no training
    report = retrain(federation, report)             # parties left out, one trained on noise, summarization
    write(report, Path("run/explain"))               # explain.json, tsne.json, and pictures as PNG and SVG

One by one:

    head_norms(federation), head_changes(federation)     how much the label owner's heads weigh each party
    embeddings = gather(federation, "test")              what the parties release for a split, asked for once
    permutation(embeddings), silenced(embeddings)        the score lost when a party's rows are mixed up, or silent
    noise_validation(federation, sigma=3.0)              the score lost when a party's test columns are noisy
    tsne(embeddings, ["lab"])                            embeddings in the plane
    correlation(measure, other)                          Spearman and Kendall over the parties
    noised, without, only                                changed holdings, for experiments of one's own
    Retraining, left_out, summarize                      experiments that train again

After the VIM paper (arXiv:2207.10226), Section 5.2.
"""

from colonnade.explain.embeddings import Embeddings, Plane, gather, tsne
from colonnade.explain.experiments import (
    Retrained,
    Retraining,
    Summary,
    at_rows,
    head_changes,
    left_out,
    noise_validation,
    noised,
    only,
    summarize,
    trained_copy,
    without,
)
from colonnade.explain.importance import (
    Agreement,
    Lost,
    correlation,
    head_norms,
    permutation,
    ranking,
    silenced,
)
from colonnade.explain.pictures import draw, write
from colonnade.explain.report import Report, explain, retrain

__all__ = [
    "Agreement",
    "Embeddings",
    "Lost",
    "Plane",
    "Report",
    "Retrained",
    "Retraining",
    "Summary",
    "at_rows",
    "correlation",
    "draw",
    "explain",
    "gather",
    "head_changes",
    "head_norms",
    "left_out",
    "noise_validation",
    "noised",
    "only",
    "permutation",
    "ranking",
    "retrain",
    "silenced",
    "summarize",
    "trained_copy",
    "tsne",
    "without",
    "write",
]
