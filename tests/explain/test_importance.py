"""Laws of the measures that a trained model alone gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from tests.explain.trained import (
    ALGORITHMS,
    WITHOUT_HEADS,
    frames,
    fresh,
    settings,
    trained,
)

from colonnade.algorithms.embedding import blocks
from colonnade.errors import ConfigError
from colonnade.explain import (
    correlation,
    gather,
    head_changes,
    head_norms,
    permutation,
    ranking,
    silenced,
)
from colonnade.explain.importance import Lost, disagreement, permuted_by
from colonnade.federation import Federation


def test_head_norms_are_those_of_each_partys_block() -> None:
    driver: Any = trained("vimadmm").driver
    heads = blocks(driver.heads, driver.widths.values())
    assert head_norms(trained("vimadmm")) == {
        k: float(W.norm()) for k, W in zip(driver.widths, heads, strict=True)
    }
    splitnn: Any = trained("splitnn").driver
    columns = torch.split(splitnn.model.weight, list(splitnn.widths.values()), dim=1)
    expected = [float(block.detach().norm()) for block in columns]
    assert list(head_norms(trained("splitnn")).values()) == pytest.approx(expected)


def test_vafls_head_of_a_party_is_its_weight_times_the_linear_model() -> None:
    driver: Any = trained("vafl").driver
    heads = [alpha * driver.model.linear.weight for alpha in driver.model.alpha]
    expected = [float(head.detach().norm()) for head in heads]
    assert list(head_norms(trained("vafl")).values()) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", WITHOUT_HEADS)
def test_heads_at_the_parties_have_no_norms_here(algorithm: str) -> None:
    assert head_norms(trained(algorithm)) == {}
    assert head_changes(trained(algorithm)) == {}


def test_a_hidden_layer_mixes_the_parties() -> None:
    federation = fresh("splitnn", algorithm={"head_hidden": 5}, train={"epochs": 1})
    assert head_norms(federation) == {}
    assert head_changes(federation) == {}


@pytest.mark.parametrize("algorithm", ["vimadmm", "vimsgd", "splitnn"])
def test_head_changes_are_measured_from_the_start(algorithm: str) -> None:
    federation = trained(algorithm)
    untrained = Federation(federation.settings, federation.holdings)
    assert set(head_changes(untrained).values()) == {0.0}

    def heads(one: Federation) -> torch.Tensor:
        driver: Any = one.driver
        found: torch.Tensor = (
            driver.model.weight.T if algorithm == "splitnn" else driver.heads
        )
        return found.detach()

    moved = blocks(
        heads(federation) - heads(untrained), federation.driver.widths.values()
    )
    assert list(head_changes(federation).values()) == pytest.approx(
        [float(part.norm()) for part in moved]
    )


def test_heads_start_where_they_did_when_labels_were_drawn_from_the_same_seed() -> None:
    labels = {"mechanism": {"name": "randomized_response", "epsilon": 2.0}}
    owner = {"outbox": {"labels": labels}}
    engine = {"device": "cpu", "noise": "seeded"}
    given = settings(parties={"weak": owner}, federation=engine)
    untrained = Federation.from_frames(frames(), id="id", label="y", settings=given)
    assert set(head_changes(untrained).values()) == {0.0}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_identity_changes_nothing(algorithm: str) -> None:
    embeddings = gather(trained(algorithm))
    same = torch.arange(len(embeddings.rows))
    assert set(permuted_by(embeddings, [same, same]).values()) == {Lost(0.0, 0.0)}


def test_a_party_whose_head_is_zero_matters_to_nothing() -> None:
    federation = fresh()
    driver: Any = federation.driver
    driver.heads = driver.heads.clone()
    blocks(driver.heads, driver.widths.values())[1].zero_()
    embeddings = gather(federation)
    assert head_norms(federation)["weak"] == 0
    assert permutation(embeddings)["weak"] == Lost(0.0, 0.0)
    assert silenced(embeddings)["weak"] == 0
    assert permutation(embeddings)["strong"].mean > 0


EACH = [(algorithm, "classes") for algorithm in ALGORITHMS] + [
    ("vimadmm", "binary"),
    ("vimadmm", "regression"),
]


@pytest.mark.parametrize(("algorithm", "task"), EACH)
def test_noise_ranks_last_by_permutation_and_silence(algorithm: str, task: str) -> None:
    embeddings = gather(trained(algorithm, task))
    lost = {party: one.mean for party, one in permutation(embeddings).items()}
    assert ranking(lost) == ["strong", "weak", "noise"]
    assert ranking(silenced(embeddings))[0] == "strong"
    assert lost["strong"] > 0.1
    assert abs(lost["noise"]) < 0.1


@pytest.mark.parametrize("task", ["classes", "binary", "regression"])
def test_vimadmm_gives_noise_the_lightest_head(task: str) -> None:
    changes = head_changes(trained("vimadmm", task))
    assert ranking(changes)[0] == "strong"
    long = fresh(
        "vimadmm",
        task,
        algorithm={"head_update": "exact", "weight_decay": 0.01},
        train={"epochs": 10},
    )
    assert ranking(head_norms(long))[-1] == "noise"


def test_permutations_are_seeded_and_shared_by_the_parties() -> None:
    embeddings = gather(trained())
    assert permutation(embeddings, seed=1) == permutation(embeddings, seed=1)
    assert permutation(embeddings, seed=1) != permutation(embeddings, seed=2)
    generator = torch.Generator().manual_seed(7)
    orders = [
        torch.randperm(len(embeddings.rows), generator=generator) for _ in range(3)
    ]
    assert permutation(embeddings, repeats=3, seed=7) == permuted_by(embeddings, orders)
    scores = [
        embeddings.score({"weak": embeddings.parts["weak"][order]}) for order in orders
    ]
    lost = torch.tensor(
        [embeddings.score() - score for score in scores], dtype=torch.float64
    )
    found = permutation(embeddings, repeats=3, seed=7)["weak"]
    assert found.mean == pytest.approx(float(lost.mean()))
    assert found.deviation == pytest.approx(float(lost.std(correction=0)))
    with pytest.raises(ConfigError, match="at least one repeat; found 0"):
        permutation(embeddings, repeats=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_silence_is_the_mean_embedding(algorithm: str) -> None:
    federation = trained(algorithm)
    embeddings = gather(federation)
    h = embeddings.parts
    mean = torch.stack([h["weak"].mean(0)] * len(h["weak"]))
    with torch.no_grad():
        outputs = embeddings.combine({**h, "weak": mean})
    accuracy = float((outputs.argmax(-1) == embeddings.labels).double().mean())
    assert silenced(embeddings)["weak"] == pytest.approx(embeddings.score() - accuracy)


def test_correlations_are_scipys() -> None:
    a = {"x": 3.0, "y": 1.0, "z": 2.0, "w": 2.0}
    b = {"w": 0.4, "x": 0.9, "y": 0.5, "z": 0.1}
    found = correlation(a, b)
    pairs = list(a.values()), [b[name] for name in a]
    assert found.spearman == spearmanr(*pairs).statistic
    assert found.kendall == kendalltau(*pairs).statistic
    assert correlation(a, a).spearman == pytest.approx(1)
    flat = correlation(a, dict.fromkeys(a, 1.0))
    assert math.isnan(flat.spearman)
    assert math.isnan(flat.kendall)
    with pytest.raises(ConfigError, match="the same parties are compared"):
        correlation(a, {"x": 1.0})


def test_equals_keep_the_parties_order() -> None:
    assert ranking({"b": 1.0, "a": 1.0, "c": 2.0}) == ["c", "b", "a"]


def test_measures_that_disagree_are_told() -> None:
    measures: dict[str, dict[str, float | None]] = {
        "head_change": {"bank": 1.0, "telco": 2.0},
        "head_norm": {"bank": 3.0, "telco": 2.0},
        "silenced": {"bank": 0.1, "telco": None},
        "permutation": {"bank": 0.2, "telco": 0.1},
        "noise": {"bank": 0.0, "telco": 0.0},
    }
    assert (
        disagreement(measures, "head_change", {})
        == 'The measures disagree on who matters most: telco by "head change", bank by'
        ' "head norm" and "shuffled".'
    )
    assert disagreement(measures, "head_norm", {}).endswith(
        'bank by "head norm", telco by "head change".'
    )
    assert (
        disagreement(
            {name: measures[name] for name in ("head_norm", "permutation", "noise")},
            "head_norm",
            {},
        )
        == ""
    )
    assert disagreement(measures, "noise", {}) == ""  # it ranks nobody


def test_a_difference_within_the_shuffles_deviation_is_no_disagreement() -> None:
    measures = {
        "head_norm": {"bank": 1.0, "telco": 2.0, "shop": 0.5},
        "permutation": {"bank": 0.210, "telco": 0.204, "shop": 0.01},
    }
    spread = {"permutation": {"bank": 0.008, "telco": 0.011, "shop": 0.002}}
    assert disagreement(measures, "head_norm", spread) == ""
    assert disagreement(measures, "permutation", spread) == ""
    narrow = {"permutation": dict.fromkeys(spread["permutation"], 0.001)}
    assert disagreement(measures, "head_norm", narrow).endswith(
        'telco by "head norm", bank by "shuffled".'
    )
