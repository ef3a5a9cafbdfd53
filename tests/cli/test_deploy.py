"""`colonnade provision`, `colonnade party check`, and what `--engine` runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.federation import small_multi, small_multi_sites
from tests.federation.small import quick, write
from tests.federation.small_multi import GAUSSIAN
from tests.federation.small_multi_sites import EVERY, private
from tests.federation.small_sites import folders, sites
from tests.sites.kinds import several
from typer.testing import CliRunner

from colonnade.cli import deploy
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.federation import Settings
from colonnade.settings.owners import SERVER
from colonnade.settings.party_file import OWN
from colonnade.sites.driving import drive

app = typer.Typer()
app.command()(deploy.provision)
app.command()(deploy.party)


def called(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


PRIVATE = {
    "lab": {
        "outbox": {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 2.0}}},
        "budget": {"epsilon": 100.0, "delta": 1e-5},
    }
}


def test_a_party_checks_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    folders(tmp_path, settings=quick(parties=PRIVATE))
    deploy.party(deploy.Action.check, tmp_path / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert "lab: 80 rows, 2 numbers a row after preparation" in told
    assert "only 'clinic' may ask it" in told
    assert 'It has models = "seeded": everybody who knows the agreed seed knows its initial weights' in told
    assert "gaussian, clip 1," in told
    assert "Budget: epsilon 100 at delta 1e-05 for every row, replace-one, over all runs." in told
    assert "Nothing of it is spent" in told
    drive(sites(tmp_path)["clinic"], "run")
    summary = json.loads((tmp_path / "lab" / "runs" / "run" / "summary.json").read_text())
    deploy.party(deploy.Action.check, tmp_path / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert f"by the row that paid most: epsilon {summary['privacy'][0]['budget']['spent']:.4g} of 100." in told
    assert "residual" not in told, "the label owner's releases are not this party's"
    deploy.party(deploy.Action.check, tmp_path / "clinic" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert "it drives, and asks the others" in told
    assert "residual" in told
    assert "No budget" in told
    own = tmp_path / "lab" / OWN
    own.write_text(own.read_text().replace('models = "seeded"\n', ""))
    deploy.party(deploy.Action.check, own)
    assert "come from the operating system: nobody else knows its model" in " ".join(capsys.readouterr().out.split())
    text = own.read_text()
    own.write_text(text[: text.index("[budget]")].replace("sigma = 2.0", 'sigma = "auto"'))
    with pytest.raises(ConfigError, match=r"Add \[budget\] epsilon = 8\.0"):
        deploy.party(deploy.Action.check, own)


@several
def test_everybody_checks_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    lab = {"name": "lab", "outbox": GAUSSIAN, "budget": {"epsilon": 1000.0, "delta": 1e-5}}
    small_multi_sites.folders(tmp_path, private(data_owners=[lab]))
    told = {}
    for name in EVERY:
        deploy.party(deploy.Action.check, tmp_path / name / OWN)
        told[name] = " ".join(capsys.readouterr().out.split())
    assert "lab: 150 rows, 2 numbers a row after preparation." in told["lab"]
    assert "Only 'north' and 'south' may ask it." in told["lab"]
    assert "gaussian, clip 1," in told["lab"]
    assert "Budget: epsilon 1000 at" in told["lab"]
    assert told["lab"].count("weights") == told["lab"].count("initial weights"), (
        "the label owners' releases are not this party's"
    )
    assert "north: 90 rows, its labels." in told["north"]
    assert f"Only '{SERVER}' may ask it." in told["north"]
    assert "gradient" in told["north"]
    assert f"{SERVER} holds no data: it drives" in told[SERVER]


def test_a_wrong_file_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "all" / "lab.csv").unlink()
    with pytest.raises(ColonnadeError, match=r"lab\.csv"):
        called("party", "check", tmp_path / "lab" / OWN)


def test_kits_are_made_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvflare", reason='NVIDIA FLARE is not installed: pip install "colonnade[flare]"')
    file = write(tmp_path / "all")
    deploy.provision(file, tmp_path / "kits", server="localhost")
    told = capsys.readouterr().out
    for word in ("relay/", "parties/clinic/", "parties/lab/", "lead/", "state/"):
        assert word in told
    own = tmp_path / "kits" / "parties" / "lab" / "local" / OWN
    deploy.party(deploy.Action.check, own)
    told = " ".join(capsys.readouterr().out.split())
    assert "The certificate in its startup kit is of 'lab', too." in told
    from colonnade.transport.identity import certified

    _, print_of_it = certified(own.parent.parent / "startup")
    assert print_of_it in told
    assert "any that the root of its kit issued in their names" in told
    own.write_text(f'{own.read_text()}\n[peers]\nclinic = "{print_of_it}"\n')
    deploy.party(deploy.Action.check, own)
    assert "those in [peers], and no others" in " ".join(capsys.readouterr().out.split())
    own.write_text((tmp_path / "kits" / "parties" / "clinic" / "local" / OWN).read_text())
    with pytest.raises(ConfigError, match="is of 'clinic', and the certificate in this startup kit is of 'lab'"):
        deploy.party(deploy.Action.check, own)
    deploy.provision(small_multi.write(tmp_path / "several", private()), tmp_path / "more", server="localhost")
    told = " ".join(capsys.readouterr().out.split())
    for name in EVERY:
        assert f"parties/{name}/" in told
        assert (tmp_path / "more" / "parties" / name / "local" / OWN).exists()
    assert "adds up weights" in told
    assert "whoever starts runs, at" in told


def test_an_engine_is_one_of_four_and_flare_needs_a_kit(tmp_path: Path) -> None:
    file = write(tmp_path / "all")
    with pytest.raises(ConfigError, match="--engine must be one of in-process, flare-sim, flare-poc, flare"):
        deploy.run_on_flare(file, "spark", tmp_path / "run")
    with pytest.raises(ConfigError, match="needs --startup-kit DIR"):
        deploy.run_on_flare(file, "flare", tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        deploy.run_on_flare(file, "flare-sim", tmp_path / "run")


@pytest.mark.parametrize(("engine", "function"), [("flare-sim", "simulate"), ("flare-poc", "on_this_machine")])
def test_an_engine_gets_the_settings_and_shows_each_epoch(
    tmp_path: Path, engine: str, function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the engines themselves do is in tests/flare."""
    seen: dict[str, Any] = {}

    def engine_of(settings: Any, work: Path, out: Path, **more: Any) -> dict[str, Any]:
        seen.update(more, settings=settings, work=work, out=out)
        more["watch"]({"epoch": 1, "loss": 0.5, "validation": {"loss": 0.6, "accuracy": 0.9}})
        return {"seconds": 1.0, "exhausted": False}

    monkeypatch.setattr(deploy, function, engine_of)
    summary = deploy.run_on_flare(write(tmp_path / "all"), engine, tmp_path / "run", seed=7)
    assert summary == {"seconds": 1.0, "exhausted": False}
    assert (seen["settings"].engine.seed, seen["resume"]) == (7, False)
    assert (seen["work"], seen["out"]) == (tmp_path / "run.flare", tmp_path / "run")
    told = " ".join(capsys.readouterr().err.split())
    assert "epoch 1 loss 0.5000 accuracy 0.9000" in told


@pytest.mark.parametrize("ended", ["FINISHED:COMPLETED", "FINISHED:EXECUTION_EXCEPTION"])
def test_a_run_elsewhere_ends_well_or_says_where_to_look(
    tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "deploy", lambda *_, **__: ended)
    file = write(tmp_path / "all")
    if ended == "FINISHED:COMPLETED":
        assert deploy.run_on_flare(file, "flare", tmp_path / "run", startup_kit=tmp_path) is None
    else:
        with pytest.raises(ColonnadeError, match=r"FINISHED:EXECUTION_EXCEPTION.*clinic's own runs/failed\.json"):
            deploy.run_on_flare(file, "flare", tmp_path / "run", startup_kit=tmp_path)


def test_a_prediction_elsewhere_names_a_run_and_a_file_and_the_result_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def elsewhere(settings: Any, kit: Path, run: str, **more: Any) -> str:
        seen.update(more, parties=list(settings.parties), kit=kit, run=run)
        return "FINISHED:COMPLETED"

    monkeypatch.setattr(deploy, "deploy", elsewhere)
    kit = tmp_path / "lead"
    with pytest.raises(ConfigError, match="is missing: copy the agreed file there"):
        deploy.predict_on_flare(Path("runs/first"), Path("x/new.csv"), "flare", startup_kit=kit)
    write(kit)
    assert deploy.predict_on_flare(Path("runs/first"), Path("x/new.csv"), "flare", startup_kit=kit) is None
    assert seen.pop("say") is deploy.waiting
    assert seen == {"predict": "new.csv", "parties": ["clinic", "lab"], "kit": kit, "run": "first"}
    assert "runs/first/predictions/new.csv" in " ".join(capsys.readouterr().out.split())


def test_a_prediction_needs_its_runs_engine_a_kit_and_a_file(tmp_path: Path) -> None:
    rows = tmp_path / "new.csv"
    with pytest.raises(ConfigError, match="--engine must be one of"):
        deploy.predict_on_flare(tmp_path / "run", rows, "spark")
    with pytest.raises(ConfigError, match="needs --startup-kit DIR"):
        deploy.predict_on_flare(tmp_path / "run", rows, "flare")
    with pytest.raises(ConfigError, match="was not trained with --engine flare-sim"):
        deploy.predict_on_flare(tmp_path / "run", rows, "flare-sim")
    (tmp_path / "run.flare" / "sites").mkdir(parents=True)
    with pytest.raises(ColonnadeError, match="there is no such file"):
        deploy.predict_on_flare(tmp_path / "run", rows, "flare-sim")


def test_a_run_is_resumed_with_its_own_seed_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def engine_of(settings: Any, _work: Path, _out: Path, **more: Any) -> dict[str, Any]:
        seen.update(more, seed=settings.engine.seed)
        return {"seconds": 1.0}

    monkeypatch.setattr(deploy, "simulate", engine_of)
    file, out = write(tmp_path / "all"), tmp_path / "run"
    with pytest.raises(ConfigError, match="There is no run to resume"):
        deploy.run_on_flare(file, "flare-sim", out, resume=True, quiet=True)
    mine = tmp_path / "run.flare" / "sites" / "clinic" / "runs" / "run"
    mine.mkdir(parents=True)
    deploy.run_on_flare(file, "flare-sim", out, resume=True, quiet=True)  # it broke off before anything was made
    assert seen == {"resume": True, "watch": seen["watch"], "seed": 0}
    (mine / "federation.toml").write_text(file.read_text().replace("[federation]", "[federation]\nseed = 7"))
    deploy.run_on_flare(file, "flare-sim", out, resume=True, quiet=True)
    assert seen["seed"] == 7
    with pytest.raises(ConfigError, match="--seed cannot be used with --engine flare"):
        deploy.run_on_flare(file, "flare", out, seed=3)


def test_a_data_sets_parties_get_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def engine_of(settings: Any, _work: Path, _out: Path, **_more: Any) -> dict[str, Any]:
        seen["parties"] = list(settings.parties)
        return {"seconds": 1.0}

    monkeypatch.setattr(deploy, "simulate", engine_of)
    file = tmp_path / "federation.toml"
    file.write_text('[data]\ndataset = "breast_cancer"\nparts = [10, 20]\n')
    deploy.run_on_flare(file, "flare-sim", tmp_path / "run", quiet=True)
    assert len(seen["parties"]) == 3


def test_a_data_set_names_the_data_owners() -> None:
    tables = {"algorithm": {"name": "multi_vfl"}, "data": {"dataset": "breast_cancer", "parts": [10, 20]}}
    settings = Settings.from_mapping({**tables, "label_owners": [{"name": "north"}, {"name": "south"}]})
    assert list(deploy._with_names(settings).parties) == ["client_01", "client_02"]


def test_a_label_owner_is_asked_to_predict_with_one_of_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, work, rows = tmp_path / "run", tmp_path / "run.flare" / "sites", tmp_path / "rows.csv"
    work.mkdir(parents=True)
    agreed, seen = small_multi.write(tmp_path / "lead", private()).read_text(), dict[str, Any]()
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


@pytest.mark.parametrize("lost", ["file", "name", "later"])
def test_what_cannot_begin_leaves_nothing_behind(tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write(tmp_path / "all"), tmp_path / "runs" / "run"
    words = r"lab\.csv"
    if lost == "file":
        (tmp_path / "all" / "lab.csv").unlink()
    elif lost == "name":
        file.write_text(file.read_text().replace('table = "lab.csv"\n', ""))
        words = r"\[parties\.lab\] must name its table"
    else:

        def engine_of(*_: Any, **__: Any) -> None:
            raise ConfigError("lab.csv: it is wrong, which a site found")

        monkeypatch.setattr(deploy, "simulate", engine_of)
    with pytest.raises(ColonnadeError, match=words) as found:
        deploy.run_on_flare(file, "flare-sim", out, quiet=True)
    assert "flare" not in str(found.value)
    assert not list(tmp_path.rglob("*.flare"))
