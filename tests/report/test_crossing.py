"""What each party sent: every number equals the ledgers and the summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.made import Page

from colonnade.algorithms import find
from colonnade.alignment import REVEALS
from colonnade.report.crossing import crossing_section, parties_section
from colonnade.report.facts import Facts, read
from colonnade.report.html import text
from colonnade.report.words import size


def test_every_flow_is_told_with_its_bytes_and_meaning(noisy_facts: Facts) -> None:
    markup = text(crossing_section(noisy_facts, {}))
    page = Page(markup)
    shown = page.tables["Everything that crossed"][1:]
    keys = page.keys(markup, "Everything that crossed")
    reveals = find("vimadmm").reveals
    assert len(shown) == len(noisy_facts.flows)
    for line, key, flow in zip(shown, keys, noisy_facts.flows, strict=True):
        assert line[:3] == [flow["from"], flow["to"], flow["name"]]
        assert [int(one) for one in key] == [
            flow["times"],
            flow["values"],
            flow["bytes"],
        ]
        assert line[-1] == reveals[flow["name"]]
        assert line[-2] == (
            "none" if flow["name"] != "embedding" else "gaussian, clip 1, sigma 4"
        )
    assert "lab sent" in page.text
    assert "Protected: gaussian, clip 1, sigma 4." in page.text


def test_a_partys_sentences_add_up_to_its_figures_with_the_alignment(
    noisy_facts: Facts,
) -> None:
    flow = next(flow for flow in noisy_facts.flows if flow["from"] == "lab")
    before = flow | {
        "name": next(iter(REVEALS)),
        "bytes": 30_400,
        "protection": "plain",
    }
    facts = replace(noisy_facts, flows=[before, *noisy_facts.flows], summary=None)
    page = Page(text(crossing_section(facts, {})))
    assert f"lab sent {size(facts.traffic['lab']['out'])}:" in page.text
    assert "to find the common rows, before training, 30.4 kB." in page.text
    assert page.text.count("to find the common rows, before training") == 1, (
        "the clinic sent nothing for it"
    )
    assert len(page.tables["What crossed in training"]) == 1 + len(noisy_facts.flows)
    assert "Everything that crossed" not in page.tables
    assert (
        "lab sent 30.4 kB:"
        in Page(text(crossing_section(replace(facts, flows=[before]), {}))).text
    )


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("identity", "It crossed unprotected."),
        ("plain", "It crossed unprotected."),
        ("quantize", "It was made smaller (quantize), not safer."),
        (
            "bfv",
            "It crossed encrypted (bfv), and whoever has the key reads it as it is.",
        ),
    ],
)
def test_what_a_codec_does_is_told(codec: str, words: str, noisy_facts: Facts) -> None:
    flows = [
        flow | {"codec": codec}
        for flow in noisy_facts.flows
        if flow["protection"] == "plain"
    ]
    assert (
        words
        in Page(text(crossing_section(replace(noisy_facts, flows=flows), {}))).text
    )


def test_bytes_per_party_are_the_summarys(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    markup = text(crossing_section(noisy_facts, {}))
    keys = Page(markup).keys(markup, "Bytes and rounds per party")
    for key, (party, traffic) in zip(
        keys, noisy_facts.summary["bytes"].items(), strict=True
    ):
        sent = sum(line["times"] for line in noisy_facts.flows if line["from"] == party)
        rounds = noisy_facts.summary["rounds"]
        assert [float(one) for one in key] == [
            traffic["out"],
            traffic["in"],
            sent,
            rounds,
            traffic["out"] / rounds,
        ]


def test_what_crossed_after_training_is_told_apart(noisy: Path) -> None:
    facts = read(noisy)
    assert facts.later  # the test rows were released once more to explain them
    page = Page(text(crossing_section(facts, {})))
    assert sum(line["times"] for line in facts.later) == sum(
        int(one[3]) for one in page.tables["Crossed after training"][1:]
    )


def test_ledgers_elsewhere_and_nothing_yet(noisy_facts: Facts) -> None:
    elsewhere = replace(noisy_facts, ledgers=["clinic"])
    assert (
        "The ledger of lab is on its own machine: what it sent"
        in Page(text(crossing_section(elsewhere, {}))).text
    )
    both = Page(text(crossing_section(replace(noisy_facts, ledgers=[]), {}))).text
    assert (
        "The ledgers of clinic and lab are on their own machines: what they sent"
        in both
    )
    assert "No ledger" in Page(text(crossing_section(Facts(name="x"), {}))).text


def test_what_was_run(noisy_facts: Facts) -> None:
    page = Page(text(parties_section(noisy_facts)))
    shown = {line[0]: line[1:] for line in page.tables["Organisations"][1:]}
    assert shown["clinic"] == [
        "2 columns and labels",
        "none: what the algorithm sends leaves as it is",
    ]
    assert shown["lab"] == [
        "2 columns",
        "embedding: gaussian, clip 1, sigma 4; budget: epsilon 8, delta 1e-05,"
        " relation replace-one",
    ]
    assert (
        "They share 80 rows: 56 for training, 8 for validation, 16 for test."
        in page.text
    )
    assert "local_steps 2" in page.text
