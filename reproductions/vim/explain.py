"""Which parties matter, on MNIST's 14 strips: VIM's Figure 5, Table 1 and Table 4, and its Figures 7 and 8.

Trains VIMADMM; compares its head norms with what noise, permutation and leaving a party out say; trains again with the
most and the least important parties, with one noisy party, and with other values of rho and tau.
"""

from __future__ import annotations

from torch import Generator

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
from colonnade.reproduction import Study

TEST_NOISE, TRAINING_NOISE = 10.0, 1.0
NOISY = "client_07"
WORDS = {"most": "important", "least": "unimportant"}
METHODS = {
    "VIMADMM": {},
    "VIMSGD": {"algorithm": {"name": "vimsgd", "learning_rate": 0.3}},
    "VAFL": {"algorithm": {"name": "vafl", "learning_rate": 0.3}},
}
PENALTIES, LOCAL_STEPS = (0.5, 1.0, 5.0), (1, 5, 10, 30)  # rho and tau; 2 and 20 are the plan's own


def run(study: Study) -> None:
    for seed in study.plan.seeds:
        federation = study.train("VIMADMM", study.settings(), seed)
        norms = _figure_5(study, federation)
        _table_1(study, federation, norms)
        _table_4(study, federation, seed, norms)
    if not study.plan.short:
        _figures_7_and_8(study, study.plan.seeds[0])


def _figure_5(study: Study, federation: Federation) -> dict[str, float]:
    """Head norms, and whether noise, permutation and silence agree with them."""
    norms = head_norms(federation)
    embeddings = gather(federation, "test")
    checks = {
        f"noise of {TEST_NOISE:.0f}": noise_validation(federation, TEST_NOISE, embeddings=embeddings),
        "permutation": permutation(embeddings),
    }
    for party, norm in norms.items():
        study.record(f"Figure 5, head norm of {party}", norm, "")
    for party, lost in checks[f"noise of {TEST_NOISE:.0f}"].items():
        study.record(f"Figure 5, accuracy with noise at {party}", embeddings.score() - lost.mean)
    for what, lost_by in checks.items():
        agreement = correlation(norms, {party: lost.mean for party, lost in lost_by.items()})
        study.record(f"rank correlation of head norms and {what}", agreement.spearman, "")
    return norms


def _table_1(study: Study, federation: Federation, norms: dict[str, float]) -> None:
    """Train with the most and the least important parties alone; for one seed also without each party in turn."""
    retraining = Retraining(federation, federation.evaluate("test")["accuracy"])
    study.record("Table 1, all", retraining.all.score)
    for found in summarize(retraining, norms):
        study.record(f"Table 1, {found.share} % {WORDS[found.which]}", found.score)
    if not study.plan.short and federation.settings.engine.seed == study.plan.seeds[0]:
        agreement = correlation(norms, left_out(retraining))
        study.record("rank correlation of head norms and leaving a party out", agreement.spearman, "")


def _table_4(study: Study, federation: Federation, seed: int, norms: dict[str, float]) -> None:
    """One party's columns are noisy in training and in testing."""
    generator = Generator().manual_seed(seed)
    holdings = noised(federation.holdings, NOISY, None, TRAINING_NOISE, generator)
    for method, changes in METHODS.items():
        trained = study.train(f"Table 4, {method}", study.settings(changes), seed, holdings)
        if method == "VIMADMM":
            study.record(f"Figure 5, head norm of {NOISY} when noisy", head_norms(trained)[NOISY], "")
            study.record(f"Figure 5, rank of {NOISY} among {len(norms)}", _rank(norms), "")
            study.record(f"Figure 5, rank of {NOISY} when noisy", _rank(head_norms(trained)), "")


def _rank(norms: dict[str, float]) -> float:
    return float(sorted(norms.values(), reverse=True).index(norms[NOISY]) + 1)


def _figures_7_and_8(study: Study, seed: int) -> None:
    for rho in PENALTIES:
        study.train(f"Figure 7, rho {rho:g}", study.settings({"algorithm": {"rho": rho}}), seed)
    for steps in LOCAL_STEPS:
        study.train(f"Figure 8, tau {steps}", study.settings({"algorithm": {"local_steps": steps}}), seed)
