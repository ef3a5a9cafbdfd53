"""`colonnade party check` and `colonnade provision` where several organisations hold labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.federation.small_multi import GAUSSIAN, write
from tests.federation.small_multi_sites import EVERY, folders, private

from colonnade.cli import deploy
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.owners import SERVER
from colonnade.settings.party_file import OWN

pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')


def test_everybody_checks_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    lab = {"name": "lab", "outbox": GAUSSIAN, "budget": {"epsilon": 1000.0, "delta": 1e-5}}
    folders(tmp_path, private(data_owners=[lab]))
    told = {}
    for name in EVERY:
        deploy.party(deploy.Action.check, tmp_path / name / OWN)
        told[name] = " ".join(capsys.readouterr().out.split())
    assert "lab: 150 rows, 2 numbers a row after preparation." in told["lab"]
    assert "Only 'north' and 'south' may ask it." in told["lab"]
    assert "gaussian, clip 1," in told["lab"]
    assert "Budget: epsilon 1000 at" in told["lab"]
    assert "weights" not in told["lab"], "the label owners' releases are not this party's"
    assert "north: 90 rows, its labels." in told["north"]
    assert f"Only '{SERVER}' may ask it." in told["north"]
    assert "gradient" in told["north"]
    assert f"{SERVER} holds no data: it drives" in told[SERVER]


def test_kits_are_made_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvflare", reason='NVIDIA FLARE is not installed: pip install "colonnade[flare]"')
    file = write(tmp_path / "all", private())
    deploy.provision(file, tmp_path / "kits", server="localhost")
    told = " ".join(capsys.readouterr().out.split())
    for name in EVERY:
        assert f"parties/{name}/" in told
        assert (tmp_path / "kits" / "parties" / name / "local" / OWN).exists()
    assert "adds up weights" in told
    assert "whoever starts runs, at" in told


def test_a_data_set_names_the_data_owners() -> None:
    tables = {"algorithm": {"name": "multi_vfl"}, "data": {"dataset": "breast_cancer", "parts": [10, 20]}}
    settings = Settings.from_mapping({**tables, "label_owners": [{"name": "north"}, {"name": "south"}]})
    assert list(deploy._with_names(settings).parties) == ["client_01", "client_02"]


def test_a_label_owner_is_asked_to_predict_with_one_of_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, work, rows = tmp_path / "run", tmp_path / "run.flare" / "sites", tmp_path / "rows.csv"
    work.mkdir(parents=True)
    agreed, seen = write(tmp_path / "lead", private()).read_text(), dict[str, Any]()
    run.mkdir()
    (run / "federation.toml").write_text(agreed)
    rows.write_text("patient\nP001\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"owner": "sout"}, "'sout' is no label owner here.*'south'.*there are north, south"),
        ({"model": "best"}, "--model is aggregated or own"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            deploy.predict_on_flare(run, rows, "flare-sim", **given)
        with pytest.raises(ConfigError, match=said):
            deploy.predict_on_flare(run, rows, "flare", startup_kit=tmp_path / "lead", **given)

    def elsewhere(*_: Any, **more: Any) -> str:
        seen.update(more)
        return deploy.DONE

    monkeypatch.setattr(deploy, "deploy", elsewhere)
    deploy.predict_on_flare(run, rows, "flare", startup_kit=tmp_path / "lead", owner="south", model="own")
    assert seen.pop("say") is deploy.waiting
    assert seen == {"predict": "rows.csv", "owner": "south", "model": "own"}
    assert "at 'south', in its own runs/run/predictions/rows.csv" in " ".join(capsys.readouterr().out.split())
