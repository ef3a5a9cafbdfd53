"""What FLARE starts. Whole runs are in test_job.py and test_deployed.py; here, what a
member lets through."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.federation.small import quick, write
from tests.federation.small_sites import folders, sites
from tests.sites.kinds import made

from colonnade.core import Done, Envelope, wire
from colonnade.errors import BoundaryError, ColonnadeError, WireError
from colonnade.federation import Settings
from colonnade.flare.engines import conclude
from colonnade.flare.job import SITES, issue
from colonnade.flare.simulator import write_sites
from colonnade.runs.layout import FAILURE
from colonnade.serving.site_service import serve_at
from colonnade.settings.party_file import OWN, STARTUP, write_own
from colonnade.settings.selection import SERVER
from colonnade.sites.messages import Join
from colonnade.transport.remote import HEAD, NONE, WHOLE

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: the extra flare")

from colonnade.transport.channel import REFUSED


def started(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **collab: Any
) -> Any:
    """A member of a simulation's site, as FLARE would start it; `collab` is what FLARE
    tells it."""
    from colonnade.flare import members as flare_members

    told = {
        "site_name": name,
        "caller": "server",
        "fl_ctx": SimpleNamespace(get_job_id=lambda: "job"),
        "other_clients": [],
    }
    monkeypatch.setattr(flare_members, "collab", SimpleNamespace(**(told | collab)))
    monkeypatch.setenv(SITES, str(folder))
    member = flare_members.Member()
    flare_members.Member.start(member)
    return member


def small(folder: Path) -> Any:
    settings = Settings.from_toml(write(folder / "all"))
    write_sites(folder, settings)
    return settings


@pytest.mark.parametrize("caller", ["clinic", "lab", "server", "stranger"])
def test_what_is_not_sealed_is_refused_whoever_flare_says_it_is_from(
    caller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE's word for the caller is the relay's: a call in the clear, forged in the
    label owner's name."""
    from colonnade.flare import members as flare_members

    small(tmp_path)
    member = started("lab", tmp_path, monkeypatch, caller=caller)
    asked: list[Any] = []
    monkeypatch.setattr(member.site.endpoint, "handle", asked.append)
    frame = wire.encode(Envelope("clinic", 1, Join("agreed")))
    for data in (
        HEAD.pack(WHOLE, NONE, 0, len(frame)) + frame,
        b"C" + frame,
        b"",
        frame,
    ):
        assert flare_members.Member.call(member, data) == (
            flare_members.FAILED if caller == "server" else REFUSED
        )
    assert not asked
    assert member.site.refused.count == (0 if caller == "server" else 4)


def test_sites_call_each_other_sealed_through_flares_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from colonnade.flare import members as flare_members

    small(tmp_path)
    lab = started("lab", tmp_path, monkeypatch, caller="whoever")
    carried: list[bytes] = []

    def call(data: bytes) -> bytes:
        carried.append(data)
        reply: bytes = flare_members.Member.call(lab, data)
        return reply

    def proxy(name: str) -> Any:
        class Proxy:
            def __init__(self) -> None:
                self.name = name

            def __call__(self, timeout: float) -> Any:
                return SimpleNamespace(call=call)

        return Proxy()

    clinic = started(
        "clinic",
        tmp_path,
        monkeypatch,
        caller="whoever",
        other_clients=[proxy("lab"), proxy("stranger")],
    )
    lines = clinic._lines(clinic.channel)
    assert list(lines) == ["lab"], "whom the relay makes up, nobody calls"
    frame = wire.encode(Envelope("clinic", 1, Join(lab.site.own.agreed)))
    reply = lines["lab"](HEAD.pack(WHOLE, NONE, 0, len(frame)) + frame, 1.0)
    assert isinstance(wire.decode(reply[1:]).message, Done)
    assert b"Join" not in b"".join(carried)


def test_an_answer_that_is_no_bytes_takes_no_memory() -> None:
    from colonnade.flare.members import _carried_by

    for answer in (10**15, "text", None):
        line = _carried_by(
            lambda timeout, answer=answer: SimpleNamespace(call=lambda _data: answer)
        )
        with pytest.raises(WireError, match="An answer brings bytes; found"):
            line(b"", 1.0)


@pytest.mark.parametrize("wrong", ["none", "another's", "pinned"])
def test_a_site_without_its_own_certificate_does_not_start(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no other way to call: a site never falls back to calls in the clear."""
    small(tmp_path)
    kit = tmp_path / "lab" / STARTUP
    own = tmp_path / "lab" / OWN
    if wrong == "none":
        (kit / "client.key").unlink()
    elif wrong == "another's":
        shutil.rmtree(kit)
        shutil.copytree(tmp_path / "clinic" / STARTUP, kit)
    else:
        own.write_text(f'{own.read_text()}\n[peers]\nclinic = "sha256:12"\n')
    words = {
        "none": "is no key that can be read",
        "another's": "is of 'clinic'",
        "pinned": "64 hexadecimal digits",
    }
    with pytest.raises(ColonnadeError, match=words[wrong]):
        started("lab", tmp_path, monkeypatch)


def test_flare_sees_one_main_and_one_published_call() -> None:
    from nvflare.collab.api.decorators import (
        get_object_main_funcs,
        get_object_publish_interface,
    )

    from colonnade.flare.members import Member, Relay

    assert [name for name, _ in get_object_main_funcs(Relay("clinic", "order"))] == [
        "main"
    ]
    assert list(get_object_publish_interface(Member()).to_dict()) == ["call"]


def test_a_call_that_is_no_bytes_takes_no_memory() -> None:
    from colonnade.flare.members import Member

    for data in (10**15, "text", None, [0]):
        with pytest.raises(BoundaryError, match="A call brings bytes; found"):
            Member().call(data)  # type: ignore[arg-type]


def test_the_driver_tells_the_server_only_how_it_ended_and_its_organisation_why(
    tmp_path: Path,
) -> None:
    from colonnade.flare.members import DONE, Member

    folders(tmp_path)
    clinic = sites(tmp_path)["clinic"]
    member = Member()
    wish = {"run": "run", "resume": False, "predict": ""}
    member._drive(clinic, wish)
    assert member.state == DONE
    member._drive(clinic, wish)  # the laboratory is prepared already
    assert member.state == b"failed (PartyError)"
    about = json.loads((tmp_path / "clinic" / "runs" / FAILURE).read_text())
    assert (about["error"], about["party"], about["cause"]) == (
        "PartyError",
        "lab",
        "it takes part in a run already",
    )


def test_a_job_makes_only_the_class_that_can_serve_listen(tmp_path: Path) -> None:
    from colonnade.flare.members import Member

    folders(tmp_path)
    member = Member()
    member._drive(
        sites(tmp_path)["clinic"],
        {"run": "run", "resume": False, "predict": "", "serve": True},
    )
    assert member.state == b"failed (ConfigError)"
    assert (
        "names another class"
        in json.loads((tmp_path / "clinic" / "runs" / FAILURE).read_text())["message"]
    )


def test_a_job_that_asks_the_wrong_site_to_predict_fails_there(tmp_path: Path) -> None:
    from colonnade.flare.members import Member

    made(tmp_path, "several")
    every = sites(tmp_path)
    for name in ("lab", SERVER):
        for wish in ({"predict": "new.csv"}, {"serve": True}):
            member = Member()
            member.serve = lambda site, run, _model: serve_at(site, run, lambda: True)
            member._drive(every[name], {"run": "run", "resume": False, **wish})
            assert member.state == b"failed (BoundaryError)"
            about = json.loads((tmp_path / name / "runs" / FAILURE).read_text())
            assert f"'{name}' does not predict" in about["message"]


@pytest.mark.parametrize("wrong", ["name", "text", "table"])
def test_a_site_that_cannot_start_says_why_in_its_own_runs(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started the run is told where to look, and the file must be there."""
    from colonnade.flare import members as flare_members
    from colonnade.flare.job import failure_in

    file, settings = folders(tmp_path, settings=quick(data={"align": "private"}))
    issue({name: tmp_path / name / STARTUP for name in ("clinic", "lab")})
    own = tmp_path / "lab" / OWN
    runs = tmp_path / "lab" / "runs"
    words = {
        "name": "is of 'clinic', and this site is 'lab'",
        "text": "is not TOML",
        "table": r"lab\.csv",
    }[wrong]
    if wrong == "name":
        own.write_text((tmp_path / "clinic" / OWN).read_text())
    elif wrong == "text":
        own.write_text("name = lab")
    else:
        (file.parent / "lab.csv").unlink()
    context = SimpleNamespace(get_job_id=lambda: "job")
    monkeypatch.setattr(
        flare_members, "collab", SimpleNamespace(site_name="lab", fl_ctx=context)
    )
    monkeypatch.setenv(SITES, str(tmp_path))
    member = flare_members.Member()
    with pytest.raises(ColonnadeError, match=words):
        flare_members.Member.start(member)
    assert re.search(words, str(failure_in(runs / FAILURE)))
    with pytest.raises(ColonnadeError, match=words):  # a rehearsal tells it, too
        conclude(
            settings,
            {name: tmp_path / name / "runs" / "run" for name in settings.parties},
            tmp_path,
            own,
        )
    (file.parent / "lab.csv").write_text("patient,iron\nP001,1\n")
    write_own(tmp_path / "lab", settings, "lab")
    flare_members.Member.start(member)
    assert not (runs / FAILURE).exists(), "it is about the last run"
