"""A small run that was audited, and what hostile hands do to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.federation.small import quick, write

from colonnade.attacks.audit import audit_run
from colonnade.attacks.report import write as write_audit
from colonnade.core.files import json_with_digest, read_json
from colonnade.federation import Federation
from colonnade.report.page import write as write_report

NOISY = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}


def audited_run(folder: Path) -> Path:
    """A clinic with labels and a laboratory with noise, trained, audited, reported."""
    settings = quick(
        train={"epochs": 2, "early_stop": False}, parties={"lab": {"outbox": NOISY}}
    )
    run = folder / "run"
    Federation.from_toml(write(folder, settings=settings)).fit(run)
    write_audit(audit_run(run, rows=8), run / "audit")
    write_report(run)
    return run


def copied(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to, symlinks=True))


def mark_as(run: Path, **changes: object) -> None:
    """Change what checkpoint.json says, with a digest that fits."""
    mark = read_json(run / "checkpoint.json")
    (run / "checkpoint.json").write_text(json_with_digest(mark | changes))
