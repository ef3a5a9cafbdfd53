"""Privacy in the page is what the summary says, line by line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.report.made import Page

from colonnade.report.facts import Facts, read
from colonnade.report.html import text
from colonnade.report.spending import headline, protected, spending, unprotected
from colonnade.report.words import epsilon


def test_every_statement_is_in_the_table_of_adversaries(noisy_facts: Facts) -> None:
    page = Page(text(spending(noisy_facts)))
    lab = next(one for one in noisy_facts.privacy if one["party"] == "lab")
    shown = page.tables["lab: columns"][1:]
    assert [line[:4] for line in shown] == [
        [one["adversary"], one["relation"], one["accountant"], epsilon(one["epsilon"])]
        for one in lab["statements"]
    ]
    for one in lab["statements"]:
        assert one["note"][1:].rstrip(".") in page.text


def test_spend_and_budget_per_party(noisy_facts: Facts) -> None:
    page = Page(text(spending(noisy_facts)))
    shown = {
        (line[0], line[1]): line[2:]
        for line in page.tables["Privacy spend per party"][1:]
    }
    lab = next(one for one in noisy_facts.privacy if one["party"] == "lab")
    spent = epsilon(lab["budget"]["spent"])
    assert shown["lab", "columns"][:2] == [spent, f" {spent} of 8 (δ = 1e-05)"]
    assert (
        "gaussian, clip 1, sigma 4, each row at most 3 times"
        in shown["lab", "columns"][2]
    )
    assert shown["clinic", "labels"][0] == "no guarantee"


def test_the_epsilon_that_is_told_first() -> None:
    def one(
        epsilon: float | None, adversary: str = "anybody", accountant: str = "exact"
    ) -> dict[str, object]:
        return {"adversary": adversary, "epsilon": epsilon, "accountant": accountant}

    assert headline({"statements": [one(None)]}) is None
    assert (
        headline(
            {
                "statements": [
                    one(1.0),
                    one(2.0),
                    one(400.0, "x, also through the local model"),
                ]
            }
        )
        == 2.0
    )
    assert (
        headline({"statements": [one(1.0), one(9.0, accountant="cpSGD's theorem")]})
        == 1.0
    )
    assert headline({"statements": [one(1.0)], "budget": {"spent": 0.5}}) == 0.5


def test_who_is_protected(noisy_facts: Facts, plain: Path) -> None:
    assert [one["party"] for one, _ in protected(noisy_facts.privacy)] == ["lab"]
    assert [
        (one["party"], one["protects"]) for one in unprotected(noisy_facts.privacy)
    ] == [("clinic", "labels"), ("clinic", "columns")]
    assert protected(read(plain).privacy) == []
    assert "once its first checkpoint" in Page(text(spending(Facts(name="x")))).text


def test_a_rehearsal_is_said_to_be_one(noisy_facts: Facts) -> None:
    """In one process weights follow from the seed; where an owner's are secret, that is
    said, too."""
    page = Page(text(spending(noisy_facts)))
    assert (
        "A rehearsal: the initial weights of clinic and lab follow from the agreed seed"
        in page.text
    )
    assert noisy_facts.summary is not None
    mixed = dataclasses.replace(
        noisy_facts,
        summary=noisy_facts.summary | {"models": {"a": "seeded", "b": "secret"}},
    )
    told = Page(text(spending(mixed))).text
    assert "the initial weights of a follow" in told
    assert "The initial weights of b came from the operating system" in told
    old = {key: value for key, value in noisy_facts.summary.items() if key != "models"}
    assert (
        "initial weights"
        not in Page(text(spending(dataclasses.replace(noisy_facts, summary=old)))).text
    )
