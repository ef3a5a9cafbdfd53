"""Between sites each organisation signs its own part: trained, audited and signed at
home, by a key that its certificate vouches for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.attacks.runs import few_steps
from tests.federation.small_sites import folders, sites

from colonnade.attacks.at_site import audit_at, takes_part
from colonnade.report.page import write as write_page
from colonnade.signing.keys import make_key
from colonnade.signing.signature import STATEMENT, sign, verify
from colonnade.sites.driving import drive

NAMES = ("clinic", "lab")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sites")
    folders(base)
    drive(sites(base)["clinic"], "run")
    every = sites(base)
    for site in every.values():
        takes_part(site, write_page)
    with few_steps():
        audit_at(every["clinic"], "run", write_page, rows=16)
    return base


@pytest.fixture(scope="module")
def statements(base: Path, startup_kits: dict[str, Path]) -> dict[str, Path]:
    signed = {}
    for name in NAMES:
        run = base / name / "runs" / "run"
        key = make_key(base / name / "key.pem", name, startup_kits[name])
        signed[name] = sign(run, name, key) / STATEMENT
    return signed


@pytest.mark.parametrize("name", NAMES)
def test_each_site_signs_its_own_part(
    base: Path,
    statements: dict[str, Path],
    startup_kits: dict[str, Path],
    name: str,
) -> None:
    root = str(startup_kits[name] / "rootCA.pem")
    run = base / name / "runs" / "run"
    signed = verify(statements[name], trust=root, run=run)
    assert signed.statement.part == name
    covered = [*signed.statement.inventory.models, *signed.statement.inventory.ledgers]
    assert covered
    assert {Path(path).parts[1] for path in covered} == {name}
    assert {promise.party for promise in signed.statement.privacy} == {name}


def test_statements_of_one_run_belong_together(statements: dict[str, Path]) -> None:
    ids = {verify(file).statement.run_id for file in statements.values()}
    assert len(ids) == 1


def test_a_copy_names_its_owners_columns_alone(
    base: Path, statements: dict[str, Path]
) -> None:
    columns = {}
    for name, file in statements.items():
        told = json.loads(file.read_text())["columns"]
        columns[name] = {*told["features"], told["label"]} - {None}
    assert not columns["clinic"] & columns["lab"]
    for name, other in (NAMES, NAMES[::-1]):
        text = statements[name].read_text()
        page = (base / name / "runs" / "run" / "report.html").read_text()
        for column in columns[other]:
            assert json.dumps(column) not in text
            assert f">{column}<" not in page
