"""`colonnade report` and `colonnade compare`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation.small import quick, splitnn, write

from colonnade.cli.console import console
from colonnade.federation import Federation


def test_a_report_with_baselines(call: Caller, tmp_path: Path) -> None:
    run = tmp_path / "run [2]"  # brackets are no markup
    Federation.from_toml(write(tmp_path / "tables")).fit(run)
    called = call("report", run, "--baselines", "--splits", 2)
    assert called.code == 0, called.err
    assert str(run / "report.html") in called.out
    assert str(run / "baselines.json") in called.err
    assert (run / "baselines.json").exists()
    assert "mean of 2 splits" in (run / "report.html").read_text()
    quiet = call("report", run, "--out", tmp_path / "other.html", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (tmp_path / "other.html").read_text() == (run / "report.html").read_text()


def test_bad_input(call: Caller, tmp_path: Path) -> None:
    Federation.from_toml(
        write(tmp_path / "tables", settings=quick(train={"epochs": 1}))
    ).fit(tmp_path / "run")
    assert f"Did you mean {tmp_path}" in call.fails(2, "report", tmp_path)
    assert "There is no folder" in call.fails(2, "report", tmp_path / "nowhere")
    # a file, no run
    assert "it has no parties or checkpoint.json" in call.fails(
        2, "report", tmp_path / "tables"
    )
    assert not (tmp_path / "tables" / "report.html").exists()
    assert "Add --baselines" in call.fails(2, "report", tmp_path / "run", "--splits", 3)
    assert "is a folder" in call.fails(2, "report", tmp_path / "run", "--out", tmp_path)
    assert "two or more" in call.fails(2, "compare", tmp_path / "run")
    assert "There is no folder" in call.fails(
        2, "compare", tmp_path / "run", tmp_path / "nowhere"
    )


def test_settings_are_told_apart_on_a_narrow_terminal(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 80)
    outbox = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 9.0}}
    }
    for name, own in (("plain", {}), ("noisy-with-a-long-name", {"outbox": outbox})):
        file = write(
            tmp_path / "tables",
            settings=quick(train={"epochs": 1}, parties={"lab": own}),
        )
        Federation.from_toml(file).fit(tmp_path / name)
    runs = tmp_path / "plain", tmp_path / "noisy-with-a-long-name"
    told = call("compare", *runs, "--out", tmp_path / "both.html").out
    for setting in ("name", "clip", "sigma"):
        assert f"parties.lab.outbox.embedding.mechanism.{setting}" in told, (
            "whole, and without a frame"
        )
    assert "…" not in told
    assert "time" in told


def test_a_comparison(call: Caller, tmp_path: Path) -> None:
    for name, settings in (("admm", quick()), ("split", splitnn())):
        Federation.from_toml(write(tmp_path / "tables", settings=settings)).fit(
            tmp_path / name
        )
    called = call(
        "compare",
        tmp_path / "admm",
        tmp_path / "split",
        "--out",
        tmp_path / "both.html",
    )
    assert called.code == 0, called.err
    for part in (
        "admm",
        "split",
        "test accuracy",
        "rounds",
        "bytes",
        "algorithm.name",
        "vimadmm",
        "splitnn",
        "both.html",
    ):
        assert part in called.out
    assert "Validation accuracy by bytes sent" in (tmp_path / "both.html").read_text()
    assert (
        call(
            "compare",
            tmp_path / "admm",
            tmp_path / "split",
            "--out",
            tmp_path / "2.html",
            "-q",
        ).out
        == ""
    )


def test_a_page_is_no_pdf(call: Caller, tmp_path: Path) -> None:
    Federation.from_toml(
        write(tmp_path / "tables", settings=splitnn(train={"epochs": 1}))
    ).fit(tmp_path / "run")
    told = call.fails(2, "report", tmp_path / "run", "--out", tmp_path / "r.pdf")
    assert "its name must end in .html; found r.pdf. For a PDF print the page" in told
    assert not (tmp_path / "r.pdf").exists()
