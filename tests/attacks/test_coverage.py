"""What no attack looked at is said, and is no pass: an audit fails closed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from tests.attacks.runs import few_steps, three, trained
from tests.federation.small import frames

from colonnade.algorithms import ALGORITHMS, Kind, Release, embedding, splitnn
from colonnade.attacks import Audit, audit_federation
from colonnade.attacks.finding import FAILED, SUMMED, UNDECLARED, UNREAD
from colonnade.core import Batches, Peers, Step
from colonnade.errors import AuditFailed


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with few_steps():
        yield


def audited(
    algorithm: str, audit: dict[str, float] | None = None, **changes: Any
) -> Audit:
    return audit_federation(trained(algorithm, audit=audit or {}, **changes), rows=8)


def sloped(driver: Any, peers: Peers, batches: Batches) -> Any:
    """SplitNN, whose gradients are called slopes."""
    for batch in batches:
        replies = peers.ask(embedding.Embed(batch.name))
        loss, gradients = driver.learn(
            {k: r.values.tensor.detach() for k, r in replies.items()}, batch.name
        )
        slopes = {
            k: driver.outbox.release(g, "slope", batch.name)
            for k, g in gradients.items()
        }
        peers.ask_each(
            {k: embedding.Descend(batch.name, slope) for k, slope in slopes.items()}
        )
        yield Step(batch, loss)


def slope(kind: Kind | None, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"embedding": embedding.EMBEDDING}
    if kind is not None:
        releases["slope"] = Release(
            kind,
            of="labels",
            per_row=True,
        )

    class Sloped(splitnn.Config):
        """SplitNN with slopes."""

        name = "sloped"
        reveals = dict.fromkeys(releases, "how the loss changes with the embedding")

    other = dataclasses.replace(
        splitnn.ALGORITHM, config=Sloped, train=sloped, releases=releases
    )
    monkeypatch.setitem(ALGORITHMS, "sloped", other)


def test_another_name_does_not_hide_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same gradients under another name are attacked as they were, to the same
    score."""
    slope(Kind.GRADIENT, monkeypatch)
    one, other = (
        audited(name, {"label_inference": 0.6}) for name in ("splitnn", "sloped")
    )
    scores = [
        [(f.attack, f.attacker, f.score) for f in audit.findings]
        for audit in (one, other)
    ]
    assert scores[0] == scores[1]
    assert other.crossed
    with pytest.raises(AuditFailed, match="labels by gradient direction"):
        other.check()


@pytest.mark.parametrize(("kind", "why"), [(Kind.OTHER, UNREAD), (None, UNDECLARED)])
def test_what_no_attack_reads_is_listed_and_no_pass(
    kind: Kind | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slope(kind, monkeypatch)
    found = audited("sloped", {"label_inference": 1.0})
    assert not found.crossed
    assert [
        (one.release, one.owner, one.receiver, one.why) for one in found.not_attacked
    ] == [("slope", "registry", "clinic", why), ("slope", "registry", "lab", why)]
    told = found.to_json()
    assert told["passed"] is False
    assert [one["release"] for one in told["not_attacked"]] == ["slope", "slope"]
    with pytest.raises(
        AuditFailed, match="2 releases could be read and were not attacked"
    ) as caught:
        found.check()
    assert f"slope of registry, read by clinic: {why}" in str(caught.value)
    found.thresholds = {}
    found.check()  # without a threshold there is no gate


@pytest.mark.parametrize(
    "algorithm", [n for n, a in ALGORITHMS.items() if a.nested is None and n != "knn"]
)
@pytest.mark.filterwarnings(
    "ignore:compressed_vfl", "ignore:vfedcce", "ignore:boosted_trees"
)
def test_all_that_the_algorithms_here_send_in_the_open_is_attacked(
    algorithm: str,
) -> None:
    config = {
        "vfedcce": {"mode": "plaintext"},
        "boosted_trees": {"encryption": "none"},
    }.get(algorithm, {})
    found = audit_federation(
        trained(algorithm, audit={}, config=config, train={"epochs": 1}), rows=48
    )
    assert not found.not_attacked


def test_of_hidden_nodes_the_choice_of_splits_is_attacked() -> None:
    config = {"nodes": "hidden", "depth": 2, "bins": 4}
    found = audit_federation(
        trained("boosted_trees", audit={}, config=config, train={"epochs": 1}), rows=48
    )
    assert not found.not_attacked


def test_neighbours_and_sums_are_not_attacked_and_ciphertexts_need_not_be() -> None:
    given = three(90) | {
        "pharmacy": (
            three(90)["lab"].rename(columns=lambda c: c if c == "patient" else f"{c}_2")
        )
    }
    found = audit_federation(trained("knn", given=given), rows=8)
    assert {one.release for one in found.not_attacked} == {"neighbours", "total"}
    assert {one.why for one in found.not_attacked} == {UNREAD}


def test_of_masked_shares_the_sum_can_be_read_and_nothing_attacks_it() -> None:
    found = audited(
        "vimadmm_joint", config={"aggregation": "secure"}, train={"epochs": 1}
    )
    assert {(one.release, one.receiver, one.why) for one in found.not_attacked} == {
        ("logits", "registry", SUMMED)
    }


def test_of_an_encrypted_and_masked_logistic_regression_all_that_can_be_read_is_attacked() -> (
    None
):
    """Columns by the sums of scores and lengths, labels by the sums that each party
    steps with."""
    config = {"aggregation": "secure", "encryption": "bfv"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("colonnade.attacks.rehearsal.ROUNDS", 4)
        patch.setattr("colonnade.algorithms.encrypted_columns.ROWS_FOR_A_NUMBER", 1)
        found = audited("logistic_regression", config=config, train={"epochs": 1})
    assert not found.not_attacked
    labels = {one.attack for one in found.findings if one.limit == "label_inference"}
    assert labels == {"labels solved from a batch's gradient"}
    assert {one.victim for one in found.findings if one.limit == "inversion_r2"} == {
        "clinic",
        "lab",
    }


def test_too_few_rows_are_no_attack() -> None:
    few = frames(10, "binary")
    few["clinic"]["diagnosis"] = ["a", "b"] * 5
    found = audit_federation(
        trained("fdml", given=few, train={"epochs": 1, "batch_size": 4}), rows=8
    )
    assert ("gradient", FAILED) in {
        (one.release, one.why) for one in found.not_attacked
    }
