"""The first box: what somebody signs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.federation import small_sites
from tests.report.made import Page
from tests.signing.signed import mark_as

from colonnade.report.facts import read
from colonnade.report.html import text
from colonnade.report.page import render, write
from colonnade.report.signing import signing_section


def box_of(run: Path) -> Page:
    return Page(text(signing_section(read(run))))


def test_it_is_the_first_section(noisy: Path) -> None:
    page = render(read(noisy))
    first = re.search(r"<section[^>]*><h2 id=\"(\w+)\">([^<]*)", page)
    assert first is not None
    assert first.groups() == ("sign", "What you sign")


def test_it_says_which_run_what_left_what_is_promised_and_what_attacks_found(
    noisy: Path,
) -> None:
    box = box_of(noisy).text
    identity = json.loads((noisy / "run.json").read_text())
    for fact in (
        identity["id"],
        identity["begun"],
        identity["version"],
        "embedding",
        "gaussian, clip 1, sigma 4",
        "replace-one",
        "the label owner",
        "Signature",
    ):
        assert fact in box
    summary = read(noisy)
    assert summary.contents is not None
    for digests in (
        summary.contents.inventory.models,
        summary.contents.inventory.ledgers,
    ):
        assert digests
        for path, about in digests.items():
            assert path in box
            assert about.sha256 in box
    audited = summary.contents.audited
    assert audited is not None
    assert audited.verdict.text in box


def test_without_an_audit_it_says_so_and_what_to_run(plain: Path) -> None:
    box = box_of(plain).text
    assert "no audit" in box
    assert "cannot be signed yet" in box
    assert "colonnade audit DIR" in box


def test_a_run_that_goes_on_has_nothing_to_sign(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    mark_as(run, finished=False)
    assert signing_section(read(run)) is None


def test_a_page_that_is_written_again_is_the_same(noisy: Path, tmp_path: Path) -> None:
    """Its hash is in what was signed."""
    first = write(noisy, tmp_path / "a.html").read_bytes()
    assert write(noisy, tmp_path / "b.html").read_bytes() == first


def test_in_one_process_each_owner_has_a_section_of_its_columns(noisy: Path) -> None:
    box = box_of(noisy).text
    contents = read(noisy).contents
    assert contents is not None
    assert set(contents.columns) == {"clinic", "lab"}
    for own in contents.columns.values():
        assert own.features
        assert all(column in box for column in own.features)


@pytest.mark.parametrize("name", ["clinic", "lab"])
def test_between_sites_a_copy_names_its_owners_columns_alone(
    tmp_path: Path, name: str
) -> None:
    small_sites.trained(tmp_path)
    contents = {
        owner: read(tmp_path / owner / "runs" / "run").contents
        for owner in ("clinic", "lab")
    }
    own = contents[name]
    assert own is not None
    assert own.part == name
    assert set(own.columns) == {name}
    (other,) = {"clinic", "lab"} - {name}
    foreign = contents[other]
    assert foreign is not None
    box = box_of(tmp_path / name / "runs" / "run").text
    assert all(column in box for column in own.columns[name].features)
    page = render(read(tmp_path / name / "runs" / "run"))
    for column in foreign.columns[other].features:
        assert column not in own.columns[name].features
        assert f">{column}<" not in page


def test_sites_have_one_id_for_one_run(tmp_path: Path) -> None:
    small_sites.trained(tmp_path)
    ids = [
        json.loads((tmp_path / name / "runs" / "run" / "run.json").read_text())["id"]
        for name in ("clinic", "lab")
    ]
    assert ids[0] == ids[1]
