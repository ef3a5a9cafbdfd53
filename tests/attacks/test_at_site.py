"""An audit between sites finds what one of one process finds, at each owner's site, and
tells what owners allow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.runs import few_steps, score_of
from tests.federation import small_multi_sites
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, ask, folders, line, sites

from colonnade import attacks
from colonnade.attacks import Audit, Finding, audit_run
from colonnade.attacks import audit as saying
from colonnade.attacks.at_site import (
    MOMENTS,
    UNREPEATED,
    AskHeldOut,
    Attack,
    AuditAnswer,
    AuditHost,
    Gather,
    Page,
    _figures,
    _guessed,
    _statement,
    audit_at,
    takes_part,
)
from colonnade.attacks.finding import ASSUMES, BY_WORD, INVERSION, KNOWN_MODEL, LIMITS
from colonnade.attacks.label_audit import OWN_WORD
from colonnade.core import Released
from colonnade.errors import AuditFailed, BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.report.page import write as write_page
from colonnade.settings.party_file import OWN, write_table
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive
from colonnade.sites.host import ColumnHost
from colonnade.sites.messages import Align, Close, GetReady, Join, Prepare, Save
from colonnade.sites.site import Site

LEARN: dict[str, Any] = {
    "algorithm": {"name": "vimadmm"},
    "train": {"epochs": 2, "batch_size": 16},
    **ALONE,
}


def auditing(base: Path, page: Page = lambda _: None) -> dict[str, Site]:
    every = sites(base)
    for site in every.values():
        takes_part(site, page)
    return every


def audited(
    base: Path,
    tells: str | None = None,
    limits: dict[str, Any] | None = None,
    page: Page = lambda _: None,
    **own: Any,
) -> Audit:
    """Of base/*/runs/run, by who just started; the laboratory tells so much, by its
    `own` limits."""
    write_table(base / "lab" / OWN, "audit", {"tell": tells or "nothing", **own})
    write_table(base / "clinic" / OWN, "audit", limits or {})
    with few_steps():
        return audit_at(auditing(base, page)["clinic"], "run", page, rows=16)[0]


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.attacks.report._pictures", lambda *_: [])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sites")
    file, _ = folders(base, settings=quick(**LEARN))
    Federation.from_toml(file).fit(base / "here")
    drive(sites(base)["clinic"], "run")
    return base


def score(one: Finding) -> tuple[Any, ...]:
    return (
        one.attack,
        one.attacker,
        one.victim,
        one.moment,
        one.metric,
        one.score,
        one.baseline,
        one.verdict.removesuffix(OWN_WORD),
    )


def test_the_figures_are_those_of_one_process(base: Path) -> None:
    found = audited(base, "figures")
    with few_steps():
        here = audit_run(base / "here", rows=16)
    needs_both = {"class seen in rebuilt rows", "columns by regression on known rows"}
    same = [score(one) for one in here.findings if one.attack not in needs_both]
    assert [
        score(one) for one in found.findings if one.attack not in needs_both
    ] == same
    assert found.not_attacked == here.not_attacked == []
    assert {one[0] for one in same} == {
        "labels from residuals",
        "labels by the head it was sent",
        "columns by model inversion",
        "columns by the known initial model",
    }
    assert found.passed
    assert found.sites == {"lab": saying.FIGURES}


def test_every_site_has_a_page_of_its_own_and_nobody_elses_columns(base: Path) -> None:
    audited(base, "verdict", page=write_page, inversion_r2=1.0)
    here, there = (
        json.loads((base / name / "runs/run/audit/audit.json").read_text())
        for name in ("clinic", "lab")
    )
    assert {one["victim"] for one in there["findings"]} == {"lab"}
    assert {one["victim"] for one in here["findings"]} == {"clinic"}
    assert "iron" in json.dumps(there)
    assert "iron" not in json.dumps(here)
    for name in ("clinic", "lab"):
        assert (
            "What attacks could learn"
            in (base / name / "runs/run/report.html").read_text()
        )
    assert here["sites"] == {"lab": saying.PASSED}


FOUND = Finding(
    attack="a",
    attacker="clinic",
    victim="lab",
    moment="m",
    assumes="",
    metric="R²",
    score=0.4,
    baseline=0.0,
    limit="inversion_r2",
)


@pytest.mark.parametrize(
    ("tells", "limits", "said"),
    [
        ("nothing", {"inversion_r2": 0.5}, saying.NOT_TOLD),
        (None, {"inversion_r2": 0.5}, saying.NOT_TOLD),
        ("verdict", {}, saying.NO_LIMITS),
        ("verdict", {"inversion_r2": 0.5, "recognition": 0.9}, saying.NO_LIMITS),
        ("verdict", {"inversion_r2": 0.5}, saying.PASSED),
        ("verdict", {"inversion_r2": 0.3}, saying.FAILED),
        ("figures", {}, saying.FIGURES),
    ],
)
def test_what_a_site_says_of_its_own_columns(
    tells: str | None, limits: dict[str, float], said: str
) -> None:
    every: dict[str, float | None] = {**dict.fromkeys(LIMITS), **limits}
    one = FOUND.under(every)
    found = Audit("run", "vimadmm", None, every, [one])
    assert _statement(found, tells) == said
    whole = Audit("run", "vimadmm", None, {"label_inference": 1.0}, sites={"lab": said})
    assert whole.passed is (said in (saying.PASSED, saying.FIGURES))


def test_who_tells_nothing_has_not_passed(base: Path) -> None:
    found = audited(base, None, {"label_inference": 1.0})
    assert found.sites == {"lab": saying.NOT_TOLD}
    assert not [one for one in found.findings if one.victim == "lab"]
    with pytest.raises(AuditFailed, match="lab: not told"):
        found.check()
    assert (
        Audit.from_json(
            json.loads((base / "clinic/runs/run/audit/audit.json").read_text())
        ).sites
        == found.sites
    )
    with pytest.raises(
        ConfigError,
        match=r"recognition = 0.5 in the party.toml of 'clinic' is not measured",
    ):
        audited(base, "figures", {"recognition": 0.5})


def test_where_a_budget_is_spent_nothing_is_attacked_and_nothing_has_passed(
    tmp_path: Path,
) -> None:
    noisy = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}
    }
    short = quick(
        **LEARN, parties={"lab": {"outbox": noisy, "budget": {"epsilon": 0.6}}}
    )
    folders(tmp_path, settings=short)
    assert drive(sites(tmp_path)["clinic"], "run").exhausted
    for tells in ("figures", "verdict"):
        found = audited(tmp_path, tells, {"label_inference": 1.0}, inversion_r2=1.0)
        assert found.sites == {"lab": saying.NOTHING_LEFT}
        assert not found.passed
    assert "first rounds: nothing left here" in page_of(tmp_path, "lab").notes


def test_guesses_leave_a_site_only_with_its_figures_and_are_in_its_ledger(
    base: Path,
) -> None:
    ledger = base / "lab/runs/run/parties/lab/ledger-after.jsonl"

    def left(tells: str | None) -> list[str]:
        before = len(ledger.read_text().splitlines())
        audited(base, tells)
        lines = [json.loads(line) for line in ledger.read_text().splitlines()[before:]]
        return [line["name"] for line in lines if line["direction"] == "out"]

    told = left(None)
    assert "audit_guess" not in told
    assert "embedding" in told
    assert left("figures").count("audit_guess") == 4  # rows and labels, of two moments


def test_an_audit_leaves_checkpoints_as_they_are_and_saves_nothing(base: Path) -> None:
    def files() -> dict[str, bytes]:
        found = [
            *base.glob("*/runs/run/parties/*/checkpoint-*/*"),
            *base.glob("*/runs/run/checkpoint.json"),
        ]
        return {str(path): path.read_bytes() for path in found}

    before = files()
    audited(base)
    assert files() == before
    lab = auditing(base)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    ask(lab, "clinic", Prepare("run", 1, True, 0, moment="first rounds"))
    for request in (Save(9, 9, 1), Close("done")):
        with pytest.raises(PartyError, match="it was not prepared for a run"):
            ask(lab, "clinic", request)
    assert files() == before


def test_a_driver_that_lies_learns_no_more_than_a_site_tells(base: Path) -> None:
    lab = auditing(base)["lab"]
    with pytest.raises(PartyError, match="were not repeated here before"):
        ask(lab, "clinic", Attack(16, 2))
    ask(lab, "clinic", Join(lab.own.agreed))
    with pytest.raises(PartyError, match="a moment of an audit is one of"):
        ask(lab, "clinic", Prepare("run", 1, True, 0, moment="tomorrow"))
    lab = auditing(base)["lab"]
    for moment in ("first rounds", "prediction", "trained model"):
        ask(lab, "clinic", Prepare("run", 1, True, 0, moment=moment))
    for wrong in (Attack(10**9, 2), Attack(16, 10**9)):
        with pytest.raises(PartyError, match=r"nobody rebuilds|there are no"):
            ask(lab, "clinic", wrong)
    write_table(base / "lab" / OWN, "audit", {"tell": "nothing"})
    plain = sites(base)["lab"]
    ask(plain, "clinic", Join(plain.own.agreed))
    with pytest.raises(BoundaryError, match="takes part in no audit here"):
        ask(plain, "clinic", Prepare("run", 1, True, 0, moment="first rounds"))


def test_a_driver_that_repeats_nothing_replaces_no_page_and_nothing_has_passed(
    base: Path,
) -> None:
    found = base / "lab/runs/run/audit/audit.json"
    audited(base, "verdict", inversion_r2=0.0001)
    before = found.read_text()
    assert not json.loads(before)["passed"]
    for again in (True, False):
        lab = auditing(base)["lab"]
        ask(lab, "clinic", Join(lab.own.agreed))
        for moment in MOMENTS:
            ask(lab, "clinic", Prepare("run", 1, True, 0, moment=moment))
        with few_steps():
            assert ask(lab, "clinic", Attack(16, 2)).said not in (
                saying.PASSED,
                saying.FIGURES,
            )
        if again:
            assert found.read_text() == before
            found.unlink()
    first = page_of(base, "lab")
    assert [one.why for one in first.not_attacked] == [
        UNREPEATED + moment for moment in MOMENTS
    ]
    assert not first.passed


def test_a_refused_moment_ends_no_other(base: Path) -> None:
    lab = auditing(base)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    ask(lab, "clinic", Prepare("run", 1, True, 0, moment="first rounds"))
    assert isinstance(lab.host, ColumnHost)
    before = lab.participant
    prepared = dict(lab.host.prepared)
    for wrong in (
        Prepare("run", 1, True, 0, moment="tomorrow"),
        Prepare("run", 1, True, 99, moment="prediction"),
    ):
        with pytest.raises(
            PartyError, match=r"a moment of an audit is one of|it has no checkpoint 99"
        ):
            ask(lab, "clinic", wrong)
        assert lab.participant is before is not None
        assert lab.host.prepared == prepared


def test_every_attack_on_columns_is_one_that_a_site_may_name() -> None:
    sources = "".join(
        path.read_text()
        for path in Path(attacks.__file__).parent.glob("*.py")
        if path.stem != "finding"
    )
    named = set(re.findall(r'"(columns (?:by|from) [^"]*)"', sources)) | {
        INVERSION,
        KNOWN_MODEL,
    }
    assert named == set(ASSUMES)


def lying(base: Path, told: Any) -> Audit:
    """The clinic's audit, where the laboratory answers `told` of what it should have
    told."""
    write_table(base / "lab" / OWN, "audit", {"tell": "figures"})
    write_table(
        base / "clinic" / OWN, "audit", {"label_inference": 0.7, "inversion_r2": 0.5}
    )
    every = auditing(base)
    host = next(role for role in every["lab"].roles if isinstance(role, AuditHost))
    answer = host.handle
    host.handle = lambda envelope: told(answer(envelope))  # type: ignore[method-assign]
    every["clinic"].routes["lab"] = line(every["lab"], "clinic")
    with few_steps():
        return audit_at(every["clinic"], "run", lambda _: None, rows=16)[0]


def test_a_site_that_lies_deceives_about_its_own_columns_alone(base: Path) -> None:
    silent = lying(base, lambda one: AuditAnswer(saying.FIGURES, "[]", (), (), ()))
    # what it is silent about is open
    assert {one.release for one in silent.not_attacked} == {"embedding"}
    assert (
        next(
            one.score
            for one in silent.findings
            if one.attack == "labels from residuals"
        )
        == 1.0
    )
    assert not silent.passed
    other = lying(base, lambda one: AuditAnswer("all is well", "[]", (), (), ()))
    assert other.sites == {"lab": saying.NOT_TOLD}
    mine = json.dumps(
        [
            {
                **FIGURE,
                "victim": "clinic",
                "attacker": "lab",
                "limit": "label_inference",
                "releases": ["residual", "embedding"],
            }
        ]
    )
    forged = lying(base, lambda one: AuditAnswer(saying.FIGURES, mine, (), (), ()))
    assert {one.victim for one in forged.findings if one.attacker == "lab"} == {
        "clinic"
    }
    assert (
        max(score_of(one) for one in forged.findings if one.victim == "clinic") == 1.0
    )


FIGURE = {
    "attack": "columns by model inversion",
    "moment": "prediction",
    "metric": "R² of the best column",
    "score": 0.0,
    "baseline": 0.0,
    "releases": ["embedding"],
}
WORDS = (
    "$\\nope$",
    "x\x1b[8A\x1b[0J",
    "[/nothing]",
    "labels from residuals",
    ["a"],
    None,
)


def zeros(base: Path) -> Callable[[AuditAnswer], AuditAnswer]:
    """The answer of a laboratory that would have everybody believe that it can tell no
    label."""
    release = sites(base)["lab"].host.outbox.release
    return lambda told: replace(
        told,
        scores=tuple(release(torch.zeros_like(one.tensor), "g") for one in told.scores),
    )


def test_wrong_guesses_of_a_partner_are_no_better_than_what_is_known_here(
    base: Path,
) -> None:
    """The label owner has the embeddings as they left, and so makes the attack with its
    head itself."""
    honest = lying(base, lambda told: told)
    deceived = lying(base, zeros(base))
    scores = [
        [
            one.score
            for one in found.findings
            if one.attack == "labels by the head it was sent"
        ]
        for found in (honest, deceived)
    ]
    assert scores[0] == scores[1] != []
    assert not deceived.passed


@pytest.mark.long
def test_nor_where_nothing_else_is_known_of_a_release(tmp_path: Path) -> None:
    """Of vfedcce nothing but a partner's own guesses says what a batch's gradient
    tells."""
    folders(tmp_path, settings={**quick(**LEARN), "algorithm": {"name": "vfedcce"}})
    drive(sites(tmp_path)["clinic"], "run")

    def on_labels(found: Audit) -> tuple[bool, list[str]]:
        mine = [
            one.crossed
            for one in found.findings
            if one.attack == "labels solved from a batch's gradient"
        ]
        return any(mine), [
            one.why for one in found.not_attacked if one.release == "gradient"
        ]

    assert on_labels(lying(tmp_path, lambda told: told)) == (True, [])
    deceived = lying(tmp_path, zeros(tmp_path))
    assert on_labels(deceived) == (False, [BY_WORD.format("lab")])
    assert not deceived.passed


def test_figures_and_guesses_that_are_none_end_the_audit_with_its_name(
    base: Path,
) -> None:
    federation = Federation.from_toml(base / "all" / "federation.toml")
    outbox = federation.organisations["lab"].outbox
    numbers = outbox.release(torch.arange(4), "g")
    parts = outbox.release(torch.rand(4), "g")
    about = ("labels by the head it was sent/first rounds",)
    words = [
        json.dumps([{**FIGURE, key: word}])
        for word in WORDS
        for key in ("attack", "moment", "metric")
    ]
    large = [json.dumps([{**FIGURE, key: 10**400}]) for key in ("score", "baseline")]
    one = AuditAnswer(
        saying.FIGURES,
        json.dumps([{**FIGURE, "assumes": WORDS[1], "limit": WORDS[1]}]),
        (),
        (),
        (),
    )
    (taken,) = _figures("lab", one, federation, _nothing())
    assert (taken.limit, taken.assumes) == (
        "inversion_r2",
        ASSUMES[taken.attack].format("some"),
    )  # our words, and none of its own
    for figures in (
        "{}",
        '[{"score": "NaN"}]',
        "[" * 100_000,
        "[7]",
        json.dumps([FIGURE] * 65),
        *words,
        *large,
    ):
        with pytest.raises(PartyError, match="'lab'"):
            list(
                _figures(
                    "lab",
                    AuditAnswer(saying.FIGURES, figures, (), (), ()),
                    federation,
                    _nothing(),
                )
            )
    ranks = torch.rand(4, 2)

    def guessed(named: tuple[str, ...], rows: Released, scores: torch.Tensor) -> Any:
        released = outbox.release(scores, "g")
        answer = AuditAnswer(saying.FIGURES, "[]", named, (rows,), (released,))
        return _guessed("lab", answer, federation)

    (guess,) = guessed(about, numbers, ranks).values()
    assert torch.equal(guess.scores, ranks)
    for named, rows, scores in (
        (("by magic",), numbers, ranks),
        (about, parts, ranks),
        (about, outbox.release(torch.tensor([0, 1, 2, 10**6]), "g"), ranks),
        (about, outbox.release(torch.zeros(4, dtype=torch.int64), "g"), ranks),
        (about, numbers, ranks[:3]),
        (about, numbers, ranks[:, 0]),
        (about, numbers, torch.rand(4, 3)),
        (about, numbers, torch.ones(4, 2, dtype=torch.int64)),
        (about, numbers, ranks / 0),
    ):
        with pytest.raises(PartyError, match="'lab'"):
            guessed(named, rows, scores)


def _nothing() -> Any:
    return ()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("several")
    file, _ = small_multi_sites.folders(
        base, small_multi_sites.private(train={"epochs": 1})
    )
    Federation.from_toml(file).fit(base / "here")
    drive(sites(base)[SERVER], "run")
    write_table(base / "lab" / OWN, "audit", {"tell": "figures"})
    write_table(
        base / "south" / OWN, "audit", {"tell": "verdict", "label_inference": 1.0}
    )
    return base


def page_of(base: Path, name: str) -> Audit:
    return Audit.from_json(
        json.loads((base / name / "runs/run/audit/audit.json").read_text())
    )


def test_several_label_owners_find_what_one_process_finds_each_on_its_own_page(
    several: Path,
) -> None:
    with few_steps():
        found, _ = audit_at(auditing(several)[SERVER], "run", lambda _: None, rows=16)
        here = audit_run(several / "here", rows=16)
    needs_both = {"class seen in rebuilt rows", "columns by regression on known rows"}
    for owner in ("north", "south"):
        mine = page_of(several, owner)
        same = [
            score(one) for one in here.findings if owner in (one.attacker, one.victim)
        ]
        # scan tells nothing
        silent = [one for one in same if one[0] not in needs_both and one[2] != "scan"]
        assert [
            score(one) for one in mine.findings if one.attack not in needs_both
        ] == silent
        assert {one[0] for one in silent} >= {
            "labels by gradient direction",
            "columns by model inversion",
        }
        assert mine.sites == {"lab": saying.FIGURES, "scan": saying.NOT_TOLD}
        assert not {"iron", "size"} & set(json.dumps(mine.to_json()).split('"'))
    for name in ("lab", "scan"):
        there = page_of(several, name)
        assert {(one.attacker, one.victim) for one in there.findings} == {
            ("north", name),
            ("south", name),
        }
    assert not found.findings
    # scan has told south nothing
    assert found.sites == {"north": saying.NOT_TOLD, "south": saying.FAILED}


def test_a_server_that_lies_in_an_audit_learns_no_more_than_label_owners_tell(
    several: Path,
) -> None:
    every = auditing(several)
    with pytest.raises(BoundaryError, match="'north' audits when it is asked"):
        audit_at(every["north"], "run", lambda _: None)
    with pytest.raises(PartyError, match="were not repeated here before"):
        ask(every["north"], SERVER, Gather(16))
    for request in (Attack(16, 2), Prepare("run", 2, True, 0, moment="first rounds")):
        with pytest.raises(BoundaryError, match="this is for north, south to ask"):
            ask(every["lab"], SERVER, request)
    for name in ("north", "south"):
        ask(every[name], SERVER, Join(every[name].own.agreed))
        ask(every[name], SERVER, Align())
    ask(every["north"], SERVER, GetReady("run", True, 0, "first rounds"))
    for wrong in (AskHeldOut(8), Gather(16)):
        with pytest.raises(
            PartyError, match=r"no prediction is repeated|were not repeated"
        ):
            ask(every["north"], SERVER, wrong)
    with pytest.raises(PartyError, match="it was not prepared for a run"):
        ask(every["north"], SERVER, Save(9, 9, 1))
    with pytest.raises(PartyError, match="a moment of an audit is one of"):
        ask(every["north"], SERVER, GetReady("run", True, 0, "tomorrow"))


def test_a_label_owner_is_told_once_and_of_what_reached_it_alone(several: Path) -> None:
    every = auditing(several)
    lab = every["lab"]
    for name in ("north", "south"):
        ask(every[name], SERVER, Join(lab.own.agreed))
        ask(every[name], SERVER, Align())
    for moment in ("first rounds", "prediction", "trained model"):
        for name in ("north", "south"):
            ask(every[name], SERVER, GetReady("run", True, 0, moment))
    with few_steps():
        told = ask(lab, "north", Attack(16, 2))
        # nothing was asked for meanwhile, so nothing can be attacked
        assert told.figures == "[]"
        with pytest.raises(PartyError, match="were not repeated here before"):
            ask(lab, "north", Attack(16, 2))
        ask(lab, "south", Attack(16, 2))
    assert lab.participant is None


def test_a_server_that_repeats_nothing_replaces_no_page_of_a_label_owner(
    several: Path,
) -> None:
    every = auditing(several)
    page = several / "south/runs/run/audit/audit.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("an earlier one")
    for name in ("north", "south"):
        ask(every[name], SERVER, Join(every[name].own.agreed))
        ask(every[name], SERVER, Align())
    for moment in MOMENTS:
        for name in ("north", "south"):
            ask(every[name], SERVER, GetReady("run", True, 0, moment))
    with few_steps():
        assert ask(every["south"], SERVER, Gather(16)).said == saying.FAILED
    assert page.read_text() == "an earlier one"
