"""What every site's clerk says; whole runs are in test_site.py and test_multi_site.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small_sites import folders

from colonnade.core import Batches, Seat, roles
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites.clerk import Clerk


def test_it_is_there_for_those_who_may_ask_and_keeps_runs_in_its_own_folder(tmp_path: Path) -> None:
    folders(tmp_path)
    own = read_own(tmp_path / "lab" / OWN)
    clerk = Clerk(Seat.at("lab", Batches({}, batch_size=1, epochs=1, seed=0)), own, ["clinic"])
    assert clerk.handle(Envelope("clinic", 1, roles.Ping())) == roles.Pong()
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        clerk.handle(Envelope("bank", 1, roles.Ping()))
    assert clerk.folder("first") == own.runs / "first"
    for wrong in ("../x", "", ".x", "a/b"):
        with pytest.raises(Exception, match="a run's name has letters"):
            clerk.folder(wrong)
    clerk.check_agreed(own.agreed)
    with pytest.raises(Exception, match="it agreed to"):
        clerk.check_agreed("something else")
