"""What FLARE starts. Whole runs are in test_flare.py and test_flare_sites.py; here, what a member lets through."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.federation.small import quick
from tests.federation.small_sites import folders, lines_of, sites

from colonnade.errors import BoundaryError, ColonnadeError
from colonnade.federation.flare import conclude
from colonnade.federation.party_file import OWN, write_own

pytest.importorskip("nvflare", reason='NVIDIA FLARE is not installed: pip install "colonnade[flare]"')


class Said:
    """A message of FLARE's, as far as its headers."""

    def __init__(self, **headers: Any) -> None:
        self.headers = headers

    def get_header(self, key: str, default: Any = None) -> Any:
        return self.headers.get(key, default)


def headers(origin: str, secure: bool, encrypted: bool) -> Any:
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key

    return Said(**{Key.ORIGIN: origin, Key.SECURE: secure, Key.ENCRYPTED: encrypted})


@pytest.mark.parametrize(
    ("origin", "secure", "encrypted", "passes"),
    [
        ("clinic.job", True, True, True),
        ("clinic.job", False, False, False),
        ("clinic.job", False, True, False),  # FLARE would take it as it is, without a look at who signed
        ("clinic.job", True, False, False),
        ("clinic", False, False, False),
        ("server.job", False, False, True),
        ("stranger.job", False, False, False),  # whom the relay may call the clinic
    ],
)
def test_what_is_not_signed_and_not_of_the_relay_is_dropped(
    origin: str, secure: bool, encrypted: bool, passes: bool
) -> None:
    from colonnade.federation.flare_members import _signed_only

    assert (_signed_only(headers(origin, secure, encrypted)) is None) == passes


def test_flare_decrypts_only_what_the_filter_asks_for() -> None:
    """The rule above stands on this: without either header FLARE takes a payload as it is."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key
    from nvflare.fuel.f3.message import Message

    for present in ({}, {Key.ENCRYPTED: True}, {Key.SECURE: True}):
        message = Message({Key.ORIGIN: "clinic.job", **present}, b"forged")
        CoreCell.decrypt_payload(object.__new__(CoreCell), message)
        assert message.payload == b"forged"


def test_a_site_is_found_under_its_own_name_alone() -> None:
    from colonnade.federation.flare_members import _check_addresses

    _check_addresses({"clinic": "clinic.job", "lab": "lab.job"})
    for address in ("server.job", "lab.job", "mallory.clinic.job", "clinics.job", ""):
        with pytest.raises(BoundaryError, match="The relay says that 'clinic' is to be found under"):
            _check_addresses({"clinic": address})


def test_flare_sees_one_main_and_one_published_call() -> None:
    from nvflare.collab.api.decorators import get_object_main_funcs, get_object_publish_interface

    from colonnade.federation.flare_members import Member, Relay

    assert [name for name, _ in get_object_main_funcs(Relay("clinic", "run"))] == ["main"]
    assert list(get_object_publish_interface(Member()).to_dict()) == ["call"]


def test_a_call_that_is_no_bytes_takes_no_memory() -> None:
    from colonnade.federation.flare_members import Member

    for data in (10**15, "text", None, [0]):
        with pytest.raises(BoundaryError, match="A call brings bytes; found"):
            Member().call(data)  # type: ignore[arg-type]


def test_the_driver_tells_the_server_only_how_it_ended_and_its_organisation_why(tmp_path: Path) -> None:
    from colonnade.federation.flare_members import DONE, FAILURE, Member

    folders(tmp_path)
    every = sites(tmp_path)
    member, wish = Member(), {"run": "run", "resume": False, "predict": ""}
    member._drive(every["clinic"], lines_of("clinic", every), wish)
    assert member.state == DONE
    member._drive(every["clinic"], lines_of("clinic", every), wish)  # the laboratory is prepared already
    assert member.state == b"failed (PartyError)"
    about = json.loads((tmp_path / "clinic" / "runs" / FAILURE).read_text())
    assert (about["error"], about["party"], about["cause"]) == ("PartyError", "lab", "it takes part in a run already")


def test_a_job_makes_only_the_class_that_can_serve_listen(tmp_path: Path) -> None:
    from colonnade.federation.flare_members import FAILURE, Member

    folders(tmp_path)
    member = Member()
    member._drive(sites(tmp_path)["clinic"], {}, {"run": "run", "resume": False, "predict": "", "serve": True})
    assert member.state == b"failed (ConfigError)"
    assert "names another class" in json.loads((tmp_path / "clinic" / "runs" / FAILURE).read_text())["message"]


@pytest.mark.parametrize("wrong", ["name", "text", "table"])
def test_a_site_that_cannot_start_says_why_in_its_own_runs(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started the run is told where to look, and the file must be there."""
    from colonnade.federation import flare_members
    from colonnade.federation.flare import failure_in

    file, settings = folders(tmp_path, settings=quick(data={"align": "private"}))
    own, runs = tmp_path / "lab" / OWN, tmp_path / "lab" / "runs"
    words = {"name": "is of 'clinic', and this site is 'lab'", "text": "is not TOML", "table": r"lab\.csv"}[wrong]
    if wrong == "name":
        own.write_text((tmp_path / "clinic" / OWN).read_text())
    elif wrong == "text":
        own.write_text("name = lab")
    else:
        (file.parent / "lab.csv").unlink()
    cell = SimpleNamespace(core_cell=SimpleNamespace(supports_secure_messages=lambda: False))
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_cell=lambda: cell))
    monkeypatch.setattr(flare_members, "collab", SimpleNamespace(site_name="lab", fl_ctx=context))
    monkeypatch.setenv(flare_members.SITES, str(tmp_path))
    member = flare_members.Member()
    with pytest.raises(ColonnadeError, match=words):
        flare_members.Member.start(member)
    assert re.search(words, str(failure_in(runs / flare_members.FAILURE)))
    with pytest.raises(ColonnadeError, match=words):  # a rehearsal tells it, too
        conclude(settings, {name: tmp_path / name / "runs" / "run" for name in settings.parties}, tmp_path, own)
    (file.parent / "lab.csv").write_text("patient,iron\nP001,1\n")
    write_own(tmp_path / "lab", settings, "lab")
    flare_members.Member.start(member)
    assert not (runs / flare_members.FAILURE).exists(), "it is about the last run"
