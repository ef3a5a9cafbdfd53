"""Which parties matter: VIM's Figure 5, Table 1 and Table 4, and its Figures 7 and 8,
on MNIST's 14 strips, on CIFAR-10's nine patches, on Letter in the place of NUS-WIDE and
on ModelNet10 in the place of ModelNet40.

Trains VIMADMM; compares its head norms with what noise, permutation and leaving a party
out say; trains again with the most and the least important parties, with one noisy
party, and with other values of rho and tau. The methods' settings are those that the
plan beside it has for accuracy alone.

Who is noisy is as in the paper on the first two (Appendix B.3). In the others' places
it is who has the largest head norm in `tsne.py`: NUS-WIDE's second party would on
Letter be the least important from the start.

A training with one seed is a cell; what needs the head norms of the plain one is in its
cell.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import Generator

from colonnade import reproduction
from colonnade.explain import (
    Retraining,
    correlation,
    gather,
    head_norms,
    left_out,
    noise_validation,
    noised,
    permutation,
    summarize,
)
from colonnade.federation import Federation
from colonnade.reproduction import Plan, Study

SHARES = (20, 50)  # percent of the parties, Table 1
METHODS = ("VIMADMM", "VIMSGD", "VAFL")


@dataclass(frozen=True)
class Data:
    """What the paper says of a data set's study (Appendix B.3)."""

    accuracy: str  # the plan that has the methods' settings
    noisy: str
    test_noise: float
    training_noise: float
    # rho and tau of Figures 7 and 8, besides the plan's own
    penalties: tuple[float, ...]
    local_steps: tuple[int, ...]
    until: int  # epochs of Figures 7 and 8
    leave_out: bool  # whether one seed is also trained without each party in turn


DATA = {
    "vim-explain": Data(
        "vim-mnist", "client_07", 10.0, 1.0, (0.5, 1.0, 5.0), (1, 5, 10, 30), 10, True
    ),
    "vim-explain-cifar": Data(
        "vim-cifar", "client_05", 1.0, 3.0, (0.5, 1.0, 5.0), (1, 5, 10), 2, False
    ),
    "vim-explain-letter": Data(
        "vim-letter", "client_03", 1.0, 1.0, (0.5, 1.0, 5.0), (1, 5, 10, 30), 10, True
    ),
    "vim-explain-modelnet10": Data(
        "vim-modelnet10", "client_01", 3.0, 1.0, (1.0, 2.0, 5.0), (1, 2, 10), 10, True
    ),
}
PARTIES = "parties"
NOISY = "Table 4, "
RHO = "Figure 7, rho "
TAU = "Figure 8, tau "


def cells(plan: Plan) -> list[str]:
    data = DATA[plan.name]
    titles = [PARTIES, *(f"{NOISY}{method}" for method in METHODS)]
    if not plan.short:
        titles += [f"{TAU}{steps}" for steps in data.local_steps] + [
            f"{RHO}{rho:g}" for rho in data.penalties
        ]
    return [
        f"{title}, seed {seed}" for title, seed in itertools.product(titles, plan.seeds)
    ]


def run(study: Study, cell: str) -> None:
    data, (title, _, seed) = DATA[study.plan.name], cell.rpartition(", seed ")
    if title == PARTIES:
        _parties(study, data, int(seed))
    elif title.startswith(NOISY):
        _table_4(study, data, title.removeprefix(NOISY), int(seed))
    else:
        name, kind, value = (
            ("rho", float, RHO) if title.startswith(RHO) else ("local_steps", int, TAU)
        )
        changes = {
            "algorithm": {name: kind(title.removeprefix(value))},
            "until": data.until,
        }
        study.train(title, study.settings(changes), int(seed))


def _parties(study: Study, data: Data, seed: int) -> None:
    federation = study.train("VIMADMM", study.settings(), seed)
    norms = _figure_5(study, data, federation)
    retraining = Retraining(federation, federation.evaluate("test")["accuracy"])
    study.record("Table 1, all", retraining.all.score)
    for share in SHARES:
        most, least = (found.score for found in summarize(retraining, norms, (share,)))
        study.record(f"Table 1, {share} % important", most)
        study.record(f"Table 1, {share} % unimportant", least)
        study.record(f"Table 1, {share} %: important above unimportant", most - least)
    if data.leave_out and not study.plan.short and seed == study.plan.seeds[0]:
        agreement = correlation(norms, left_out(retraining))
        study.record(
            "rank correlation of head norms and leaving a party out",
            agreement.spearman,
            "",
        )


def _figure_5(study: Study, data: Data, federation: Federation) -> dict[str, float]:
    """Head norms, and whether noise and permutation agree with them."""
    norms = head_norms(federation)
    embeddings = gather(federation, "test")
    noise = f"noise of {data.test_noise:g}"
    checks = {
        noise: noise_validation(federation, data.test_noise, embeddings=embeddings),
        "permutation": permutation(embeddings),
    }
    for party, norm in norms.items():
        study.record(f"Figure 5, head norm of {party}", norm, "")
    for party, lost in checks[noise].items():
        study.record(
            f"Figure 5, accuracy with noise at {party}", embeddings.score() - lost.mean
        )
    for what, lost_by in checks.items():
        agreement = correlation(
            norms, {party: lost.mean for party, lost in lost_by.items()}
        )
        study.record(
            f"rank correlation of head norms and {what}", agreement.spearman, ""
        )
    study.record(
        f"Figure 5, rank of {data.noisy} among {len(norms)}",
        _rank(norms, data.noisy),
        "",
    )
    return norms


def _table_4(study: Study, data: Data, method: str, seed: int) -> None:
    """One party's columns are noisy in training and in testing."""
    settings = study.settings(
        {
            **reproduction.plan(data.accuracy).runs[method],
            "until": max(study.plan.epochs),
        }
    )
    generator = Generator().manual_seed(seed)
    holdings = noised(
        study.federation(settings, seed).holdings,
        data.noisy,
        None,
        data.training_noise,
        generator,
    )
    trained = study.train(f"{NOISY}{method}", settings, seed, holdings)
    if method == "VIMADMM":
        norms = head_norms(trained)
        study.record(
            f"Figure 5, head norm of {data.noisy} when noisy", norms[data.noisy], ""
        )
        study.record(
            f"Figure 5, rank of {data.noisy} when noisy", _rank(norms, data.noisy), ""
        )


def _rank(norms: dict[str, float], party: str) -> float:
    return float(sorted(norms.values(), reverse=True).index(norms[party]) + 1)
