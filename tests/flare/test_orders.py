"""A driver begins by the lead's order alone; who carries it can neither write one nor
use one twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.flare.test_members import small, started

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: the extra flare")

from colonnade.errors import BoundaryError, StoreError
from colonnade.flare import members, orders
from colonnade.flare.job import issue
from colonnade.flare.orders import lead_of, opened, signed
from colonnade.settings.party_file import STARTUP
from colonnade.store import SiteStore
from colonnade.transport.identity import Identity

WISH = {
    "driver": "clinic",
    "run": "run",
    "resume": False,
    "predict": "",
    "serve": False,
    "model": "",
}
LEAD = lead_of("clinic")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, whose keys take long to make."""
    made = tmp_path_factory.mktemp("kits")
    issue({"clinic": made / "clinic", "lab": made / "lab"}, (LEAD, made / "lead"))
    return made


@pytest.fixture
def clinic(kits: Path, tmp_path: Path) -> Identity:
    """A driver, with the lead's kit beside it, and a site's of the same root."""
    shutil.copytree(kits, tmp_path, dirs_exist_ok=True)
    return Identity.load(tmp_path / "clinic", "clinic")


def store_in(folder: Path) -> Callable[[], SiteStore]:
    """Opens the clinic's store, which is there after the first time."""

    def store() -> SiteStore:
        if not (folder / "store").exists():
            return SiteStore.create(folder / "store", "clinic")
        return SiteStore.open(folder / "store", "clinic")

    return store


def test_an_order_counts_once_also_after_a_restart(
    clinic: Identity, tmp_path: Path
) -> None:
    order = signed(tmp_path / "lead", WISH).encode()
    wish = opened(order, clinic, LEAD, store_in(tmp_path))
    assert {key: wish[key] for key in WISH} == WISH
    with pytest.raises(StoreError, match="was brought again"):
        opened(order, clinic, LEAD, store_in(tmp_path))
    another = signed(tmp_path / "lead", WISH).encode()
    opened(another, clinic, LEAD, store_in(tmp_path))


@pytest.mark.parametrize(
    "by",
    [
        "another word",
        "another driver",
        "a site",
        "another root",
        "another lead",
        "yesterday",
    ],
)
def test_what_the_lead_did_not_order_is_refused(
    by: str, clinic: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = tmp_path / "lead"
    wish = dict(WISH)
    name = LEAD
    if by == "another root":
        issue({}, (LEAD, lead))
    elif by == "a site":
        lead = tmp_path / "lab"
        name = "lab"
    elif by == "another driver":
        wish["driver"] = "lab"
    elif by == "another lead":
        name = lead_of("lab")
    elif by == "yesterday":
        before = datetime.now(UTC) - timedelta(days=2)
        monkeypatch.setattr(
            orders,
            "datetime",
            type("Then", (datetime,), {"now": classmethod(lambda _c, _z: before)}),
        )
    order = signed(lead, wish)
    monkeypatch.undo()
    if by == "another word":
        changed = json.loads(order)
        changed["said"] = changed["said"].replace('"resume": false', '"resume": true')
        order = json.dumps(changed)
    with pytest.raises((BoundaryError, StoreError)):
        opened(order.encode(), clinic, name, store_in(tmp_path))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"said": 1, "certificate": "", "signature": ""}',
    ],
)
def test_what_is_no_order_is_refused_in_words(
    data: bytes, clinic: Identity, tmp_path: Path
) -> None:
    with pytest.raises(BoundaryError):
        opened(data, clinic, LEAD, store_in(tmp_path))


def test_a_relay_that_wishes_for_itself_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it could before: the driver's own files allow the run, and nobody asked for
    it."""
    small(tmp_path / "sites")
    driven: list[Any] = []
    monkeypatch.setattr(
        members.Member, "_drive", lambda _self, _site, wish: driven.append(wish)
    )
    member = started("clinic", tmp_path / "sites", monkeypatch)
    for wish in (
        json.dumps(WISH).encode(),
        signed(tmp_path / "sites" / "lab" / STARTUP, WISH).encode(),
    ):
        assert members.Member.call(member, members.START + wish) == members.FAILED
    assert (driven, member.state, member.site.refused.count) == ([], b"", 2)
    order = signed(tmp_path / "lead", WISH).encode()
    assert members.Member.call(member, members.START + order) == members.RUNNING
    member.thread.join()
    assert [wish["run"] for wish in driven] == ["run"]
    again = started("clinic", tmp_path / "sites", monkeypatch)
    assert members.Member.call(again, members.START + order) == members.FAILED, (
        "the same order in another job"
    )
