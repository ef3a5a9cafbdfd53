"""What is received is data: an agreed file or a run directory of somebody else's names
code, and nothing of it runs."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.cli.conftest import call
from tests.federation.small import Tower, federation, frames, quick, write
from torch import Tensor

from colonnade import Federation, load
from colonnade.errors import CheckpointError, ColonnadeError, ConfigError, PartyError
from colonnade.flare.job import failure_in
from colonnade.runs.layout import FAILURE, SETTINGS, SUMMARY
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import OWN, read_own, write_agreed, write_own
from colonnade.settings.toml_text import to_toml

__all__ = ["call"]

TOWER = "tests.federation.small:Tower"
PLANTED = """
from pathlib import Path
from tests.federation.small import Tower as Kind

(Path(__file__).parent / "ran").touch()


class Tower(Kind):
    pass
"""


class Leaving(Tower):
    """Ends the program when it trains, as if all were well."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise SystemExit(0)
        return super().forward(x)


Attack = Callable[[Path], dict[str, object]]


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module where it would be found, that notes when it is imported."""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("planted", None)


def command(place: Path) -> dict[str, object]:
    return {"name": "subprocess:Popen", "args": ["touch", str(place / "ran")]}


def imported(place: Path) -> dict[str, object]:
    return {"name": "planted:Tower"}


def leaving(place: Path) -> dict[str, object]:
    return {"name": "builtins:exit", "code": 0}


attacks = pytest.mark.parametrize("attack", [command, imported, leaving])
REFUSED = "is code from outside Colonnade"


def nothing_ran(place: Path) -> bool:
    return not (place / "ran").exists() and "planted" not in sys.modules


@attacks
@pytest.mark.parametrize("called", ["plan", "run", "privacy"])
def test_a_received_federation_file_runs_nothing(
    call: Caller, tmp_path: Path, attack: Attack, called: str
) -> None:
    path = write(tmp_path / "sent", settings={**quick(), "model": attack(tmp_path)})
    more = ("--out", tmp_path / "run", "--quiet") if called == "run" else ()
    message = call.fails(2, called, path, *more)
    assert REFUSED in message
    assert f"--allow-model {attack(tmp_path)['name']}" in message
    assert nothing_ran(tmp_path)
    assert not (tmp_path / "run" / SUMMARY).exists()


def site(place: Path, **own: object) -> Path:
    """The lab's own files beside an agreed file that names code."""
    file = write(
        place / "sent", settings={**quick(), "model": {"name": "planted:Tower"}}
    )
    settings = Settings.from_toml(file)
    local = place / "lab"
    local.mkdir()
    write_agreed(local, settings)
    write_own(local, settings, "lab")
    tables = tomllib.loads((local / OWN).read_text(encoding="utf-8"))
    (local / OWN).write_text(to_toml({**tables, **own}), encoding="utf-8")
    return local / OWN


def test_an_agreed_file_runs_nothing_at_a_site(call: Caller, tmp_path: Path) -> None:
    message = call.fails(2, "party", "check", site(tmp_path))
    assert REFUSED in message
    assert 'allow_models = ["planted:Tower"] in your own party.toml' in message
    assert nothing_ran(tmp_path)


@pytest.mark.parametrize(
    "own", [{"allow_models": ["planted:Tower"]}, {"model": "planted:Tower"}], ids=str
)
def test_an_organisation_allows_code_in_its_own_file(
    call: Caller, tmp_path: Path, own: dict[str, object]
) -> None:
    assert call("party", "check", site(tmp_path, **own)).code == 0
    assert not nothing_ran(tmp_path)


def test_sites_of_this_machine_are_told_what_its_owner_allowed(tmp_path: Path) -> None:
    """`run --engine flare-sim` writes every organisation's own file; kits for others
    say nothing of it."""
    file = write(tmp_path / "own", settings={**quick(), "model": TOWER})
    for allowed in ((TOWER,), ()):
        settings = Settings.from_toml(file, allow_models=allowed)
        write_agreed(tmp_path, settings)
        write_own(tmp_path, settings, "lab")
        assert read_own(tmp_path / OWN).settings.allow_models == allowed
        assert read_own(tmp_path / OWN).local.allow_models == allowed
        assert "allow" not in (tmp_path / "federation.toml").read_text(encoding="utf-8")


def test_an_agreed_file_cannot_allow_anything(tmp_path: Path) -> None:
    path = site(tmp_path)
    agreed = path.with_name("federation.toml")
    agreed.write_text(
        'allow_models = ["planted:Tower"]\n' + agreed.read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match=r"has no table \[allow_models\]"):
        read_own(path)


@pytest.mark.parametrize("listed", ["planted:Tower", [3], {"a": 1}], ids=str)
def test_what_is_allowed_is_a_list_of_import_paths(
    tmp_path: Path, listed: object
) -> None:
    with pytest.raises(
        ConfigError, match="allow_models must be a list of import paths"
    ):
        read_own(site(tmp_path, allow_models=listed))


def received(place: Path, model: dict[str, object]) -> Path:
    """A finished run whose settings somebody changed before sending it on."""
    file = write(place / "sent")
    run = place / "run"
    Federation.from_toml(file).fit(run)
    tables = tomllib.loads((run / SETTINGS).read_text(encoding="utf-8"))
    (run / SETTINGS).write_text(to_toml({**tables, "model": model}), encoding="utf-8")
    return run


@attacks
def test_a_received_run_directory_runs_nothing(
    call: Caller, tmp_path: Path, attack: Attack
) -> None:
    run = received(tmp_path, attack(tmp_path))
    ids = tmp_path / "ids.csv"
    ids.write_text("patient\nP001\n")
    for called in (
        ("export", run),
        ("audit", run, "--quiet"),
        ("explain", run, "--no-pictures", "--quiet"),
        ("predict", run, "--rows", ids),
        ("report", run, "--baselines", "--quiet"),
    ):
        assert REFUSED in call(*called).err + _notes(run), called
        assert nothing_ran(tmp_path), called
    with pytest.raises(ConfigError, match=REFUSED):
        load(run)
    assert nothing_ran(tmp_path)


def _notes(run: Path) -> str:
    """Where a report could not train a baseline, it says why."""
    kept = run / "baselines.json"
    return kept.read_text(encoding="utf-8") if kept.exists() else ""


def test_who_runs_it_may_allow_a_model_of_its_own(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path / "own", settings={**quick(), "model": TOWER})
    run = tmp_path / "run"
    allow = ("--allow-model", TOWER)
    assert call("plan", path, *allow).code == 0
    assert call("run", path, "--out", run, "--quiet", *allow).code == 0
    for called in (
        ("export", run),
        ("audit", run, "--quiet"),
        ("explain", run, "--no-pictures", "--quiet"),
    ):
        assert call(*called, *allow).code == 0, called
    assert call("report", run, "--baselines", "--quiet", *allow).code == 0
    assert load(run, allow_models=[TOWER]).settings.model == {"name": TOWER}
    assert Federation.from_toml(path, allow_models=[TOWER]).settings.code() == (TOWER,)
    for wrong in (TOWER, [3]):
        with pytest.raises(
            ConfigError, match="allow_models must be a list of import paths"
        ):
            Federation.from_toml(path, allow_models=wrong)  # type: ignore[arg-type]


def test_settings_of_ones_own_program_are_ones_own(tmp_path: Path) -> None:
    one = federation(settings={**quick(), "model": TOWER})
    one.fit(tmp_path / "run")
    assert "allow" not in (tmp_path / "run" / SETTINGS).read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=REFUSED):
        load(tmp_path / "run", frames=frames())
    load(tmp_path / "run", frames=frames(), allow_models=[TOWER])


def test_a_model_that_ends_the_program_is_a_failure_of_its_party() -> None:
    one = federation(
        settings=quick(
            parties={"lab": {"model": "tests.security.test_received_code:Leaving"}}
        )
    )
    with pytest.raises(
        PartyError, match=r"'lab' failed while answering .*: SystemExit: 0"
    ):
        next(one.train())


@pytest.mark.parametrize(
    "name", ["../../outside", "/outside", "..", "a/b", "", "x" * 65]
)
def test_a_received_run_writes_and_reads_in_its_own_folder_alone(
    tmp_path: Path, name: str
) -> None:
    from colonnade.export import export

    run = received(tmp_path, {"name": "mlp", "hidden": [6], "width": 4})
    summary = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    del summary["sha256"]  # whoever sends it made it
    summary["parties"][name] = summary["parties"].pop("lab")
    (run / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        CheckpointError,
        match=f"names a party {re.escape(repr(name))}, which is no name",
    ):
        export(run, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "link",
    [
        "parties/lab/ledger-after.jsonl",
        "parties/lab/store",
        "explain",
        "parties",
    ],
)
def test_a_link_in_a_received_run_leads_nowhere(
    call: Caller, tmp_path: Path, link: str
) -> None:
    """What is predicted is written down at the end of a ledger, which would be a file
    of the reader's."""
    run = received(tmp_path, {"name": "mlp", "hidden": [6], "width": 4})
    mine = tmp_path / "mine"
    if link in ("explain", "parties"):
        (run / link).rename(mine) if link == "parties" else mine.mkdir()
    else:
        mine.write_text("do not touch\n")
    (run / link).symlink_to(mine)
    before = {
        path: path.read_bytes() for path in [mine, *mine.rglob("*")] if path.is_file()
    }
    ids = tmp_path / "ids.csv"
    ids.write_text("patient\nP001\n")
    for called in (
        ("predict", run, "--rows", ids),
        ("explain", run, "--no-pictures", "--quiet"),
    ):
        assert "is a link out of its run, which is one folder" in call.fails(2, *called)
    assert before == {
        path: path.read_bytes() for path in [mine, *mine.rglob("*")] if path.is_file()
    }


@pytest.mark.parametrize(
    "kind", ["annotations", "__builtins__", "SystemExit", "NoSuchError", "__loader__"]
)
def test_a_failure_on_disk_names_an_error_of_ours_and_no_other_class(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / FAILURE).write_text(
        json.dumps({"error": kind, "message": "what happened"}), encoding="utf-8"
    )
    found = failure_in(tmp_path / FAILURE)
    assert type(found) is ColonnadeError
    assert str(found) == "what happened"
