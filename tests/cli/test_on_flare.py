"""`colonnade run`, `predict` and `serve` with --engine flare*: what each asks of its
engine, and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import Caller
from tests.federation import small_multi
from tests.federation.small import write
from tests.federation.small_multi_sites import private

from colonnade.cli import on_flare
from colonnade.cli.on_flare import (
    predict_on_flare,
    read_predictions,
    run_on_flare,
    say_waiting,
)
from colonnade.errors import (
    BudgetExhausted,
    CheckpointError,
    ColonnadeError,
    ConfigError,
    PartyError,
)
from colonnade.federation import Settings
from colonnade.flare import deployed
from colonnade.flare.engines import OnThisMachine
from colonnade.flare.job import Job


def test_an_engine_is_one_of_four_and_flare_needs_a_kit(tmp_path: Path) -> None:
    file = write(tmp_path / "all")
    with pytest.raises(
        ConfigError,
        match="--engine must be one of in-process, flare-sim, flare-poc, flare",
    ):
        run_on_flare(Settings.from_toml(file), "spark", tmp_path / "run")
    with pytest.raises(ConfigError, match="needs --startup-kit DIR"):
        run_on_flare(Settings.from_toml(file), "flare", tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        run_on_flare(Settings.from_toml(file), "flare-sim", tmp_path / "run")


@pytest.mark.parametrize(
    ("engine", "kept"), [("flare-sim", "sites"), ("flare-poc", "kits")]
)
def test_an_engine_gets_the_settings_and_shows_each_epoch(
    tmp_path: Path,
    engine: str,
    kept: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the engines themselves do is in tests/flare."""
    seen: dict[str, Any] = {}

    def train(
        self: OnThisMachine, settings: Any, out: Path, **more: Any
    ) -> dict[str, Any]:
        seen.update(more, settings=settings, kept=self.machine.kept, out=out)
        more["watch"](
            {"epoch": 1, "loss": 0.5, "validation": {"loss": 0.6, "accuracy": 0.9}}
        )
        return {"seconds": 1.0, "exhausted": False}

    monkeypatch.setattr(OnThisMachine, "train", train)
    summary = run_on_flare(
        Settings.from_toml(write(tmp_path / "all")), engine, tmp_path / "run", seed=7
    )
    assert summary == {"seconds": 1.0, "exhausted": False}
    assert (seen["settings"].engine.seed, seen["resume"]) == (7, False)
    assert (seen["kept"], seen["out"]) == (
        tmp_path / "run.flare" / kept,
        tmp_path / "run",
    )
    told = " ".join(capsys.readouterr().err.split())
    assert "epoch 1 loss 0.5000 accuracy 0.9000" in told


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_run_that_breaks_off_goes_on_as_often_as_was_said(
    tmp_path: Path,
    restarts: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried = list[bool]()

    def train(
        _self: OnThisMachine, _settings: Any, _out: Path, *, resume: bool, **_more: Any
    ) -> dict[str, Any]:
        tried.append(resume)
        if len(tried) < 3:
            raise PartyError("lab", "Embed", "train/0/0", "it died")
        return {"seconds": 1.0, "exhausted": False}

    monkeypatch.setattr(OnThisMachine, "train", train)
    settings = Settings.from_toml(write(tmp_path / "all"))
    if restarts == 2:
        assert run_on_flare(settings, "flare-sim", tmp_path / "run", restarts=restarts)
    else:
        with pytest.raises(PartyError):
            run_on_flare(settings, "flare-sim", tmp_path / "run", restarts=restarts)
    assert tried == [False, True, True][: restarts + 1]
    assert capsys.readouterr().err.count("goes on from its last checkpoint") == restarts


@pytest.mark.parametrize(
    "error", [ConfigError("no"), BudgetExhausted("no"), CheckpointError("no")]
)
def test_what_another_try_cannot_cure_is_tried_once(
    tmp_path: Path, error: ColonnadeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def train(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(OnThisMachine, "train", train)
    with pytest.raises(type(error)):
        run_on_flare(
            Settings.from_toml(write(tmp_path / "all")),
            "flare-sim",
            tmp_path / "run",
            restarts=3,
        )
    assert len(tried) == 1


@pytest.mark.parametrize(
    "ended", ["FINISHED:COMPLETED", "FINISHED:EXECUTION_EXCEPTION"]
)
def test_a_run_elsewhere_ends_well_or_says_where_to_look(
    tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "carry_out", lambda *_: ended)
    file = write(tmp_path / "all")
    if ended == "FINISHED:COMPLETED":
        assert (
            run_on_flare(
                Settings.from_toml(file),
                "flare",
                tmp_path / "run",
                startup_kit=tmp_path,
            )
            is None
        )
    else:
        with pytest.raises(
            ColonnadeError,
            match=r"FINISHED:EXECUTION_EXCEPTION.*clinic's own runs/failed\.json",
        ):
            run_on_flare(
                Settings.from_toml(file),
                "flare",
                tmp_path / "run",
                startup_kit=tmp_path,
            )


def test_a_prediction_elsewhere_names_a_run_and_a_file_and_the_result_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def elsewhere(
        _settings: Any, kit: Path, job: Job, _told: Path, _watch: Any, say: Any
    ) -> str:
        seen.update(kit=kit, job=job, say=say)
        return deployed.DONE

    monkeypatch.setattr(deployed, "carry_out", elsewhere)
    kit = tmp_path / "lead"
    with pytest.raises(ConfigError, match="is missing: copy the agreed file there"):
        predict_on_flare(
            Path("runs/first"), Path("x/new.csv"), "flare", startup_kit=kit
        )
    write(kit)
    here = predict_on_flare(
        Path("runs/first"), Path("x/new.csv"), "flare", startup_kit=kit, strict=True
    )
    assert here is None
    job = Job("clinic", ("clinic", "lab"), "first", predict="new.csv", strict=True)
    assert seen == {"kit": kit, "job": job, "say": say_waiting}
    assert "runs/first/predictions/new.csv" in " ".join(capsys.readouterr().out.split())


def test_a_sites_file_of_predictions_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Ids keep their zeros and classes their words, whole numbers stay whole, and where
    there is no prediction the cells are empty."""
    (tmp_path / "p.csv").write_text(
        "patient,prediction,score_1,score_2,degraded,missing\n"
        "007,1,0.75,0.25,,\n"
        "08,,,,,lab\n"
    )
    (tmp_path / "w.csv").write_text("patient,prediction,missing\n7,NA,\n8,,lab\n")
    frame = read_predictions(tmp_path / "p.csv", "patient")
    assert frame["patient"].tolist() == ["007", "08"]
    assert frame["prediction"].dtype == "Int64"
    assert frame["score_1"].dtype.kind == "f"
    assert frame["missing"].tolist() == ["", "lab"]
    assert frame["degraded"].tolist() == ["", ""]
    assert frame.iloc[1, 1:4].isna().all()
    assert read_predictions(tmp_path / "w.csv", "patient")["prediction"][0] == "NA"


def test_a_prediction_needs_its_runs_engine_a_kit_and_a_file(tmp_path: Path) -> None:
    rows = tmp_path / "new.csv"
    with pytest.raises(ConfigError, match="--engine must be one of"):
        predict_on_flare(tmp_path / "run", rows, "spark")
    with pytest.raises(ConfigError, match="needs --startup-kit DIR"):
        predict_on_flare(tmp_path / "run", rows, "flare")
    with pytest.raises(ConfigError, match="was not trained with --engine flare-sim"):
        predict_on_flare(tmp_path / "run", rows, "flare-sim")
    (tmp_path / "run.flare" / "sites").mkdir(parents=True)
    write(tmp_path / "run")
    with pytest.raises(ColonnadeError, match="there is no such file"):
        predict_on_flare(tmp_path / "run", rows, "flare-sim")


def test_a_run_is_resumed_with_its_own_seed_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def train(
        _self: OnThisMachine, settings: Any, _out: Path, **more: Any
    ) -> dict[str, Any]:
        seen.update(more, seed=settings.engine.seed)
        return {"seconds": 1.0}

    monkeypatch.setattr(OnThisMachine, "train", train)
    file = write(tmp_path / "all")
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="There is no run to resume"):
        run_on_flare(
            Settings.from_toml(file), "flare-sim", out, resume=True, quiet=True
        )
    mine = tmp_path / "run.flare" / "sites" / "clinic" / "runs" / "run"
    mine.mkdir(parents=True)
    run_on_flare(
        Settings.from_toml(file), "flare-sim", out, resume=True, quiet=True
    )  # it broke off before anything was made
    assert seen == {"resume": True, "watch": seen["watch"], "seed": 0}
    (mine / "federation.toml").write_text(
        file.read_text().replace("[federation]", "[federation]\nseed = 7")
    )
    run_on_flare(Settings.from_toml(file), "flare-sim", out, resume=True, quiet=True)
    assert seen["seed"] == 7
    with pytest.raises(ConfigError, match="--seed cannot be used with --engine flare"):
        run_on_flare(Settings.from_toml(file), "flare", out, seed=3)


def test_a_data_sets_parties_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def train(
        _self: OnThisMachine, settings: Any, _out: Path, **_more: Any
    ) -> dict[str, Any]:
        seen["parties"] = list(settings.parties)
        return {"seconds": 1.0}

    monkeypatch.setattr(OnThisMachine, "train", train)
    file = tmp_path / "federation.toml"
    file.write_text('[data]\ndataset = "breast_cancer"\nparts = [10, 20]\n')
    run_on_flare(Settings.from_toml(file), "flare-sim", tmp_path / "run", quiet=True)
    assert len(seen["parties"]) == 3


def test_a_data_set_names_the_data_owners() -> None:
    tables = {
        "algorithm": {"name": "multi_vfl"},
        "data": {"dataset": "breast_cancer", "parts": [10, 20]},
    }
    settings = Settings.from_mapping(
        {**tables, "label_owners": [{"name": "north"}, {"name": "south"}]}
    )
    assert list(on_flare._with_names(settings).parties) == ["client_01", "client_02"]


def test_a_label_owner_is_asked_to_predict_with_one_of_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    work = tmp_path / "run.flare" / "sites"
    rows = tmp_path / "rows.csv"
    work.mkdir(parents=True)
    agreed = small_multi.write(tmp_path / "lead", private()).read_text()
    seen = list[Job]()
    run.mkdir()
    (run / "federation.toml").write_text(agreed)
    rows.write_text("patient\nP001\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"owner": "sout"},
            "'sout' is no label owner here.*'south'.*there are north, south",
        ),
        ({"model": "best"}, "one of aggregated, own"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            predict_on_flare(run, rows, "flare-sim", **given)
        with pytest.raises(ConfigError, match=said):
            predict_on_flare(run, rows, "flare", startup_kit=tmp_path / "lead", **given)

    def elsewhere(_settings: Any, _kit: Path, job: Job, *_: Any) -> str:
        seen.append(job)
        return deployed.DONE

    monkeypatch.setattr(deployed, "carry_out", elsewhere)
    predict_on_flare(
        run, rows, "flare", startup_kit=tmp_path / "lead", owner="south", model="own"
    )
    assert seen == [
        Job("south", ("south", "lab", "scan"), "run", predict="rows.csv", model="own")
    ]
    assert "at 'south', in its own runs/run/predictions/rows.csv" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("lost", ["file", "name", "later"])
def test_what_cannot_begin_leaves_nothing_behind(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "all")
    out = tmp_path / "runs" / "run"
    words = r"lab\.csv"
    if lost == "file":
        (tmp_path / "all" / "lab.csv").unlink()
    elif lost == "name":
        file.write_text(file.read_text().replace('table = "lab.csv"\n', ""))
        words = r"\[parties\.lab\] must name its table"
    else:

        def train(*_: Any, **__: Any) -> None:
            raise ConfigError("lab.csv: it is wrong, which a site found")

        monkeypatch.setattr(OnThisMachine, "train", train)
    with pytest.raises(ColonnadeError, match=words) as found:
        run_on_flare(Settings.from_toml(file), "flare-sim", out, quiet=True)
    assert "flare" not in str(found.value)
    assert not list(tmp_path.rglob("*.flare"))


def test_where_to_listen_is_no_part_of_a_job(call: Caller, finished: Path) -> None:
    for option, value in (
        ("--host", "0.0.0.0"),
        ("--port", "1"),
        ("--limit", "2"),
        ("--token-file", "t"),
    ):
        message = call.fails(
            2, "serve", finished / "run", "--engine", "flare", option, value
        )
        assert f"{option} is no part of a job" in message
        assert "[serve]" in message


def test_what_cannot_be_served_is_told(
    call: Caller, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLONNADE_TOKEN", raising=False)
    run = finished / "run"
    assert "was not trained with --engine flare-sim" in call.fails(
        2, "serve", run, "--engine", "flare-sim"
    )
    assert "--engine must be one of" in call.fails(2, "serve", run, "--engine", "fast")
    assert "needs --startup-kit DIR" in call.fails(2, "serve", run, "--engine", "flare")
    assert "with FLARE a site has its own" in call.fails(
        2, "serve", run, "--engine", "flare-sim", "--table=lab=x.csv"
    )
    monkeypatch.setenv("COLONNADE_TOKEN", "a-token-of-some-length")
    assert "Give --token-file FILE" in call.fails(
        2, "serve", run, "--engine", "flare-sim"
    )
