"""What FLARE starts. Whole runs are in test_flare.py and test_flare_sites.py; here, what a member lets through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small_sites import folders, lines_of, sites

pytest.importorskip("nvflare", reason='NVIDIA FLARE is not installed: pip install "colonnade[flare]"')


class Said:
    """A message of FLARE's, as far as its headers."""

    def __init__(self, **headers: Any) -> None:
        self.headers = headers

    def get_header(self, key: str, default: Any = None) -> Any:
        return self.headers.get(key, default)


def headers(origin: str, encrypted: bool) -> Any:
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

    return Said(**{MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.ENCRYPTED: encrypted})


@pytest.mark.parametrize(
    ("origin", "encrypted", "passes"),
    [
        ("clinic.job", True, True),
        ("clinic.job", False, False),
        ("clinic", False, False),
        ("server.job", False, True),
        ("stranger.job", False, True),  # FLARE's own rules and the desk refuse it
    ],
)
def test_what_says_it_is_from_a_site_and_is_not_signed_is_dropped(origin: str, encrypted: bool, passes: bool) -> None:
    from colonnade.federation.flare_members import _signed_only

    assert (_signed_only(headers(origin, encrypted), frozenset(["clinic", "lab"])) is None) == passes


def test_flare_sees_one_main_and_one_published_call() -> None:
    from nvflare.collab.api.decorators import get_object_main_funcs, get_object_publish_interface

    from colonnade.federation.flare_members import Member, Relay

    assert [name for name, _ in get_object_main_funcs(Relay("clinic", "run"))] == ["main"]
    assert list(get_object_publish_interface(Member()).to_dict()) == ["call"]


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
