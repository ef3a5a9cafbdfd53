"""`colonnade provision` and `colonnade party check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from tests.federation import small_multi, small_multi_sites
from tests.federation.small import quick, write
from tests.federation.small_multi import GAUSSIAN
from tests.federation.small_multi_sites import EVERY, private
from tests.federation.small_sites import folders, sites
from typer.testing import CliRunner

from colonnade.cli import deploy
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.settings.party_file import OWN
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive

app = typer.Typer()
app.command()(deploy.provision)
app.command()(deploy.party)


def called(*words: object) -> str:
    result = CliRunner().invoke(
        app, [str(word) for word in words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


NOISE = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 2.0}}
PRIVATE = {
    "lab": {"outbox": {"embedding": NOISE}, "budget": {"epsilon": 100.0, "delta": 1e-5}}
}


def test_a_party_checks_its_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders(tmp_path, settings=quick(parties=PRIVATE))
    deploy.party(deploy.Action.check, tmp_path / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert "lab: 80 rows, 2 numbers a row after preparation" in told
    assert "Only 'clinic' may ask it" in told
    assert (
        'It has models = "seeded": everybody who knows the agreed seed knows its'
        " initial weights" in told
    )
    assert "gaussian, clip 1," in told
    assert (
        "Budget: epsilon 100 at delta 1e-05 for every row, replace-one, over all runs."
        in told
    )
    assert "Nothing of it is spent" in told
    drive(sites(tmp_path)["clinic"], "run")
    summary = json.loads(
        (tmp_path / "lab" / "runs" / "run" / "summary.json").read_text()
    )
    deploy.party(deploy.Action.check, tmp_path / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "by the row that paid most: epsilon"
        f" {summary['privacy'][0]['budget']['spent']:.4g} of 100." in told
    )
    assert "residual" not in told, "the label owner's releases are not this party's"
    deploy.party(deploy.Action.check, tmp_path / "clinic" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert "It drives, and asks the others" in told
    assert "residual" in told
    assert "No budget" in told
    own = tmp_path / "lab" / OWN
    own.write_text(own.read_text().replace('models = "seeded"\n', ""))
    deploy.party(deploy.Action.check, own)
    assert "come from the operating system: nobody else knows its model" in " ".join(
        capsys.readouterr().out.split()
    )
    text = own.read_text()
    own.write_text(
        text[: text.index("[budget]")].replace("sigma = 2.0", 'sigma = "auto"')
    )
    with pytest.raises(ConfigError, match=r"Add \[budget\] epsilon = 8\.0"):
        deploy.party(deploy.Action.check, own)


def test_it_is_told_where_rules_protect_less_than_they_seem_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").mkdir()
    weak = {
        "predict.embedding": {"mechanism": "plain"},
        "test.embedding": {"mechanism": "plain"},
    }
    folders(
        tmp_path / "one",
        settings=quick(parties={"lab": {"outbox": {"embedding": NOISE, **weak}}}),
    )
    deploy.party(deploy.Action.check, tmp_path / "one" / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "Weaker than another rule for embedding: test.embedding, predict.embedding. Who"
        " asks says what" in told
    )
    (tmp_path / "two").mkdir()
    knn = {**quick(parties={"lab": {"outbox": {"distances": NOISE}}})}
    folders(
        tmp_path / "two",
        settings={**knn, "algorithm": {"name": "knn", "aggregation": "plain"}},
    )
    deploy.party(deploy.Action.check, tmp_path / "two" / "lab" / OWN)
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "Not all rows: its noise covers rows that are asked about; training rows enter"
        " every distance" in told
    )
    assert "Weaker" not in told


def test_everybody_checks_its_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = {
        "name": "lab",
        "outbox": GAUSSIAN,
        "budget": {"epsilon": 1000.0, "delta": 1e-5},
    }
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
    assert (
        "aligns with it 10 times to train, by lists of 10 ids or more, and compares"
        " 1,000 ids" in told["lab"]
    )
    assert f"{SERVER} holds no data: it drives" in told[SERVER]


def test_the_servers_of_selections_are_named_for_what_they_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = folders(tmp_path, settings=quick(selection={"servers": True}))
    for name, sees in (
        (SERVER, "pseudo ids and ciphertexts"),
        ("key_server", "sums of distances of nameless rows"),
    ):
        deploy.party(deploy.Action.check, tmp_path / name / OWN)
        told = " ".join(capsys.readouterr().out.split())
        assert sees in told
        assert "weights" not in told
        # what `provision` says of its kit
        assert sees in deploy.duties_of(settings, name)


def test_a_wrong_file_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "all" / "lab.csv").unlink()
    with pytest.raises(ColonnadeError, match=r"lab\.csv"):
        called("party", "check", tmp_path / "lab" / OWN)


def test_kits_are_made_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
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
    assert "those in [peers], and no others" in " ".join(
        capsys.readouterr().out.split()
    )
    own.write_text(
        (tmp_path / "kits" / "parties" / "clinic" / "local" / OWN).read_text()
    )
    with pytest.raises(
        ConfigError,
        match="is of 'clinic', and the certificate in this startup kit is of 'lab'",
    ):
        deploy.party(deploy.Action.check, own)
    deploy.provision(
        small_multi.write(tmp_path / "several", private()),
        tmp_path / "more",
        server="localhost",
    )
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in EVERY:
        assert f"parties/{name}/" in told
        assert (tmp_path / "more" / "parties" / name / "local" / OWN).exists()
    assert "adds up weights" in told
    assert "whoever starts runs, at" in told
