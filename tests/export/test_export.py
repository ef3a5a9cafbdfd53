"""Pieces put together outside Colonnade predict as the federation does, by the code
that stands in their READMEs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.export.trained import frames, run
from tests.federation import small, small_multi_sites, small_sites

from colonnade.errors import ConfigError
from colonnade.export import export
from colonnade.export.pieces import Trained
from colonnade.federation import Federation, load
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive

ALGORITHMS: list[tuple[dict[str, Any], Any]] = [
    ({"name": "splitnn", "head_hidden": 5}, "classes"),
    ({"name": "vafl"}, "binary"),
    ({"name": "fdml"}, "regression"),
    ({"name": "vimsgd"}, "classes"),
    ({"name": "vimadmm", "local_steps": 2}, "binary"),
    ({"name": "compressed_vfl"}, "binary"),
    ({"name": "vfedcce", "mode": "plaintext"}, "classes"),
    ({"name": "multi_vfl", "learning_rate": 0.01}, "binary"),
    (
        {
            "name": "boosted_trees",
            "encryption": "none",
            "learning_rate": 0.5,
            "bins": 8,
        },
        "classes",
    ),
    (
        {"name": "boosted_trees", "encryption": "none", "depth": 3, "min_rows": 2},
        "regression",
    ),
    (
        {
            "name": "boosted_trees",
            "encryption": "none",
            "ensemble": "forest",
            "row_share": 0.6,
        },
        "binary",
    ),
]


def code_of(folder: Path) -> dict[str, str]:
    """The programs in a README, by the piece that they load."""
    found = re.findall(
        r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
    )
    return {"labels" if "labels/" in code else "columns": code for code in found}


def ran(code: str, **given: Any) -> dict[str, Any]:
    assert "colonnade" not in code
    with torch.no_grad():
        exec(code, given)
    return given


def predicted(
    made: list[Path], tables: Path, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Each organisation computes from its own table in its own folder; a label owner
    gets what they made."""
    sent: dict[str, Any] = {}
    for folder in made:
        if (folder / "columns").exists():
            monkeypatch.chdir(folder)
            rows = (
                pd.read_csv(tables / f"{folder.name}.csv").set_index("patient").loc[ids]
            )
            rows.to_csv("rows.csv")
            sent[folder.name] = ran(code_of(folder)["columns"])["sent"]
            Path("rows.csv").unlink()
    holder = next(folder for folder in made if (folder / "labels").exists())
    monkeypatch.chdir(holder)
    return ran(code_of(holder)["labels"], received=sent)


@pytest.mark.parametrize(
    ("algorithm", "task"),
    ALGORITHMS,
    ids=lambda one: one["name"] if isinstance(one, dict) else one,
)
@pytest.mark.filterwarnings(
    "ignore:compressed_vfl", "ignore:.*plaintext", "ignore:boosted_trees without"
)
def test_the_pieces_together_predict_as_the_federation(
    algorithm: dict[str, Any],
    task: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = run(tmp_path / "at", algorithm, task)
    made = export(folder, tmp_path / "out")
    several = algorithm["name"] == "multi_vfl"
    trained: Any = load(folder)
    ids = trained.holdings.ids
    share = trained.holdings.label_owners["north"] if several else trained.holdings
    wanted = (
        share.ids[share.splits["test"].numpy()].tolist()
        if several
        else ids[share.splits["test"].numpy()].tolist()
    )
    truth = trained.predict(wanted)
    found = predicted(made, tmp_path / "at", wanted, monkeypatch)
    if task == "regression":
        np.testing.assert_allclose(found["values"].numpy(), truth.labels, rtol=1e-5)
        return
    scores = found["scores"].numpy()
    np.testing.assert_allclose(
        scores, truth.scores if scores.ndim == 2 else truth.score, atol=2e-6
    )
    if scores.ndim == 2:
        classes = np.array(found["config"]["outputs"]["classes"])
        assert (classes[scores.argmax(1)] == truth.labels).all()


def test_a_label_that_was_trained_as_its_logarithm_comes_back_from_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = frames("regression")
    cost = given["clinic"]["diagnosis"]
    given["clinic"]["diagnosis"] = np.exp(cost / 50)
    settings = small.splitnn(data={"target_scale": "log"})
    path = small.write(tmp_path / "at", given, settings)
    Federation.from_toml(path).fit(tmp_path / "at" / "run")
    made = export(tmp_path / "at" / "run", tmp_path / "out")
    ids = given["clinic"]["patient"].tolist()[:20]
    truth: Any = load(tmp_path / "at" / "run")
    found = predicted(made, tmp_path / "at", ids, monkeypatch)
    np.testing.assert_allclose(
        found["values"].numpy(), truth.predict(ids).labels, rtol=1e-5
    )


def test_a_piece_reads_text_that_means_numbers_or_times_as_training_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = frames()
    lab = given["lab"]
    random = np.random.default_rng(0)
    amounts = random.uniform(1000, 9000, len(lab))
    days = pd.Timestamp("2021-03-04") + pd.to_timedelta(
        random.integers(0, 900, len(lab)), unit="D"
    )
    lab["income"] = [f"{one:,.2f}" for one in amounts]
    lab["rent"] = [f"€ {one:.2f}".replace(".", ",") for one in amounts / 7]
    lab["owed"] = [f"-{one:.0f} $" for one in amounts]
    lab["people"] = [f"{one:,.0f}".replace(",", " ") for one in amounts]
    lab["since"], lab["until"] = (
        days.strftime("%d.%m.%Y"),
        days.strftime("%Y-%m-%d %H:%M"),
    )
    for column in ("income", "since"):
        lab.loc[lab.index[:9], column] = "?"
    path = small.write(tmp_path / "at", given, small.quick(train={"epochs": 1}))
    Federation.from_toml(path).fit(tmp_path / "run")
    made = export(tmp_path / "run", tmp_path / "out")
    trained = load(tmp_path / "run")
    read = {
        one.get("read", {}).get("way")
        for one in Trained(tmp_path / "run").pieces("lab")[0].inputs["columns"]
    }
    assert len(read - {None}) == 6, "each by a way of its own"
    ids = trained.ids.tolist()
    scores = predicted(made, tmp_path / "at", ids, monkeypatch)["scores"].numpy()
    np.testing.assert_allclose(scores, trained.predict(ids).score, atol=2e-6)


@pytest.mark.parametrize("name", ["splitnn", "fdml", "boosted_trees", "multi_vfl"])
def test_sites_export_their_own_pieces_which_together_are_those_of_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each from its own folder alone; `fdml` gives a party without labels a head of
    three outputs."""
    base = tmp_path / "at"
    alone = {"device": "cpu", "cohort": "off"}
    if name == "multi_vfl":
        file, settings = small_multi_sites.folders(base, small_multi_sites.private())
        drive(small_multi_sites.sites(base)[SERVER], "run")
    else:
        base.mkdir()
        algorithm = {
            "name": name,
            **({"depth": 2, "bins": 4} if name == "boosted_trees" else {}),
        }
        given = {**small.quick(federation=alone), "algorithm": algorithm}
        file, settings = small_sites.folders(base, frames("classes"), given)
        drive(small_sites.sites(base)["clinic"], "run")
    Federation.from_settings(settings).fit(tmp_path / "whole")
    whole = Trained(tmp_path / "whole")
    for party in [*settings.label_owners, *settings.parties]:
        pieces = Trained(base / party / "runs" / "run").pieces(party)
        for mine, other in zip(pieces, whole.pieces(party), strict=True):
            assert (mine.role, mine.shapes, mine.inputs) == (
                other.role,
                other.shapes,
                other.inputs,
            )
            assert mine.outputs == other.outputs
            state = mine.model.state_dict()
            same = other.model.state_dict()
            assert state.keys() == same.keys()
            assert all(torch.equal(state[key], same[key]) for key in state)
    with pytest.raises(
        ConfigError,
        match=(
            "is the part of 'lab' in a run between sites; 'clinic' exports at its own"
        ),
    ):
        export(base / "lab" / "runs" / "run", tmp_path / "other", "clinic")
    if name == "multi_vfl":
        with pytest.raises(
            ConfigError, match="holds no data, and so no piece of the model"
        ):
            export(base / SERVER / "runs" / "run", tmp_path / "other")
    if name != "fdml":
        return
    made = [
        export(base / party / "runs" / "run", tmp_path / "out")[0]
        for party in settings.parties
    ]
    for folder in made:
        text = (folder / "README.md").read_text()
        assert (
            "This is one organisation's part: it was exported at the site of"
            f" {folder.name}" in text
        )
        assert (
            ("| rows | loss | accuracy |" in text)
            == ("pipeline_tag" in text)
            == (folder.name == "clinic")
        )
    ids = frames("classes")["lab"]["patient"].tolist()[:5]
    scores = predicted(made, file.parent, ids, monkeypatch)["scores"]
    np.testing.assert_allclose(
        scores.numpy(), load(tmp_path / "whole").predict(ids).scores, atol=2e-6
    )


def test_knn_has_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "at", {"name": "splitnn"})
    text = re.sub(r"\A#.*\n", "", (folder / "federation.toml").read_text()).replace(
        'name = "splitnn"', 'name = "knn"', 1
    )
    keep = re.sub(r"\[algorithm\]\n(?:.+\n)+", '[algorithm]\nname = "knn"\n', text)
    (folder / "federation.toml").write_text(keep)
    with pytest.raises(ConfigError, match="'knn' has no model to export"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_of_one_organisation_is_in_anothers_folder(tmp_path: Path) -> None:
    rules = {"lab": {"outbox": {"embedding": {"codec": {"name": "half"}}}}}
    folder = run(
        tmp_path / "at", {"name": "vimadmm", "local_steps": 2}, "classes", parties=rules
    )
    clinic, lab = export(folder, tmp_path / "out")
    assert {path.name for path in lab.iterdir()} == {
        "README.md",
        "model_card.json",
        "columns",
    }
    weights = {
        place: (place / "columns" / "model.safetensors").read_bytes()[-40:]
        for place in (clinic, lab)
    }
    heads = (clinic / "labels" / "model.safetensors").read_bytes()[-32:]
    private = {
        clinic: [b'"age"', b'"high"', b'"mid"', heads],
        lab: [b"iron", b"zinc", b"tissue", b"blood", b"hair", b'"codec": {'],
    }
    for mine, other in ((clinic, lab), (lab, clinic)):
        held = b"".join(
            path.read_bytes() for path in sorted(other.rglob("*")) if path.is_file()
        )
        for words in (*private[mine], weights[mine]):
            assert words not in held
        own = b"".join(
            path.read_bytes() for path in sorted(mine.rglob("*")) if path.is_file()
        )
        assert all(words in own for words in (*private[mine], weights[mine]))
        for place in (
            str(tmp_path).encode(),
            b"P001",
            b"diagnosis",
            b"site-packages",
            b"/src/",
        ):
            assert place not in held


def test_one_organisation_alone_and_nothing_twice(tmp_path: Path) -> None:
    folder = run(tmp_path / "at", {"name": "fdml"})
    assert export(folder, None, "lab") == [folder / "export" / "lab"]
    assert not (folder / "export" / "clinic").exists()
    with pytest.raises(ConfigError, match=r"is there already\. Choose another --out"):
        export(folder, None, "lab")
    with pytest.raises(
        ConfigError, match=r"'labb' is no party of this run \(did you mean 'lab'\?\)"
    ):
        export(folder, None, "labb")
    RunDirectory(folder).keep_mark(RunDirectory(folder).mark() | {"finished": False})
    with pytest.raises(ConfigError, match="has not finished"):
        export(folder, tmp_path / "other")
