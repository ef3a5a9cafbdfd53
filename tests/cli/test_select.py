"""`colonnade select` on files: who is kept, what is written, and what is refused before
anything is computed."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.cli.called import Caller
from tests.federation import small_multi

from colonnade.cli.demo import write_tables

FAST = ("--queries", 48, "--tests", 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path / "federation.toml"


def test_a_tie_is_not_called_a_reason_to_leave_out(path: Path, call: Caller) -> None:
    """The demo's broker: 0.436 ± 0.023 where the last that is kept has 0.458 ± 0.023."""
    done = call("select", path, "--keep", 3)
    assert done.code == 0, done.err
    assert "as good as lab_north" in done.out
    assert "leave out" not in done.out
    assert "In the place of broker, lab_north adds 0.034 ± 0.043 nats: a tie" in (
        done.out
    )
    assert "--least-difference says how large one must be" in done.out


def test_a_clear_difference_is_one_unless_more_is_asked_for(
    path: Path, call: Caller
) -> None:
    clear = ("select", path, "--keep", 1, "--method", "leave_one_out")
    done = call(*clear)
    assert done.code == 0, done.err
    assert "leave out" in done.out
    done = call(*clear, "--least-difference", 0.5)
    assert "leave out" not in done.out
    assert "above 0.500 (--least-difference)" in done.out


def test_who_sells_noise_is_not_in_the_file_that_is_written(
    path: Path, call: Caller
) -> None:
    fewer = path.with_name("fewer.toml")
    done = call(
        "select",
        path,
        "--keep",
        3,
        "--write",
        fewer,
        "--out",
        path.parent / "found",
        *FAST,
    )
    assert done.code == 0, done.err
    for part in (
        "keep",
        "as good as",
        "Who learned what",
        "encryptions",
        f"colonnade run {fewer}",
    ):
        assert part in done.out
    before, after = (tomllib.loads(one.read_text()) for one in (path, fewer))
    assert set(before["parties"]) - set(after["parties"]) == {"broker"}
    assert "# holds the labels and ten columns" in fewer.read_text()
    found = json.loads((path.parent / "found" / "selection.json").read_text())
    assert found["ranking"][-1] == "broker"
    assert sorted(found["chosen"]) == ["clinic", "lab_north", "lab_south"]
    assert (path.parent / "found" / "selection.png").stat().st_size > 5000


def test_the_label_owner_stays_whatever_its_columns_are_worth(
    path: Path, call: Caller
) -> None:
    fewer = path.with_name("fewer.toml")
    done = call("select", path, "--keep", 1, "--json", "--write", fewer, *FAST)
    assert (done.code, done.err) == (0, "")
    (best,) = json.loads(done.out)["chosen"]
    parties = tomllib.loads(fewer.read_text())["parties"]
    assert set(parties) == {"clinic", best} != {"clinic"}
    assert parties["clinic"]["columns"] == [], "as the table says: labels only"
    both = path.with_name("both.toml")
    done = call(
        "select", path, "--keep", 1, "--method", "lasso", "--json", "--write", both
    )
    assert (done.code, done.err) == (0, ""), "no warning of an unfinished Lasso either"
    assert set(tomllib.loads(both.read_text())["parties"]) == {
        "clinic",
        *json.loads(done.out)["chosen"],
    }


def test_whose_budget_or_noise_does_not_cover_a_selection_is_told(
    path: Path, call: Caller
) -> None:
    rules = (
        "\n[parties.lab_north.budget]\nepsilon ="
        ' 8.0\n[parties.lab_south.outbox]\nembedding = { codec = "half" }\n'
    )
    noise = 'labels = { mechanism = { name = "randomized_response", epsilon = 1.0 } }'
    path.write_text(f"{path.read_text()}{rules}[parties.clinic.outbox]\n{noise}\n")
    told = (
        r"^The budget and rules of 'clinic' and 'lab_north' do not cover a selection:"
        r" .* no budget is charged"
    )
    with pytest.warns(UserWarning, match=told):
        assert (
            call("select", path, "--keep", 1, "--method", "lasso", "--quiet").code == 0
        )


def test_the_same_seed_selects_the_same(path: Path, call: Caller) -> None:
    first, again = (
        json.loads(call("select", path, "--keep", 2, "--json", *FAST).out)
        for _ in range(2)
    )
    assert first["scores"] == again["scores"]
    # of two classes that are not quite as large
    assert max(first["scores"].values()) < first["entropy"] < math.log(2)
    shown = call("select", path, "--keep", 2, *FAST).out
    assert (
        f"the highest possible is {first['entropy']:.3f}, the label's entropy."
        in " ".join(shown.split())
    )


def test_the_files_table_holds_unless_an_option_says_otherwise(
    path: Path, call: Caller
) -> None:
    path.write_text(
        path.read_text() + "\n[selection]\nqueries = 30\ntests = 4\nfagin = false\n"
    )
    found = json.loads(call("select", path, "--keep", 2, "--json").out)
    assert len(found["groups"]) == 4
    without = json.loads(call("select", path, "--keep", 2, "--json", "--tests", 6).out)
    assert len(without["groups"]) == 6
    assert (
        found["cost"]["candidates"]
        == without["cost"]["candidates"]
        == round(found["cost"]["candidates"])
    )
    path.write_text(path.read_text().replace("queries = 30", "querys = 30"))
    assert "[selection] has no setting 'querys'" in call.fails(
        2, "select", path, "--keep", 2
    )


HOUSES = """
[parties.agency]
table = "agency.csv"
label = "price"
[parties.bank]
table = "bank.csv"
[parties.broker]
table = "broker.csv"
[parties.city]
table = "city.csv"
"""


def houses(folder: Path) -> Path:
    """A label that is a number, of which the broker knows nothing."""
    random = np.random.default_rng(0)
    values = random.normal(size=(300, 4))
    price = 1000 * values @ np.array([2.0, 2.0, 0.0, 1.5]) + 200_000
    for at, name in enumerate(("agency", "bank", "broker", "city")):
        table = pd.DataFrame({"id": range(300), "x": values[:, at]})
        (table.assign(price=price) if name == "agency" else table).to_csv(
            folder / f"{name}.csv", index=False
        )
    (folder / "houses.toml").write_text(HOUSES)
    return folder / "houses.toml"


def test_a_label_that_is_a_number_is_cut_into_classes(
    tmp_path: Path, call: Caller
) -> None:
    path = houses(tmp_path)
    fewer = tmp_path / "fewer.toml"
    done = call(
        "select", path, "--keep", 3, "--write", fewer, "--json", "--queries", 80
    )
    assert (done.code, done.err) == (0, "")
    learned = json.loads(done.out)["learned"]
    assert set(tomllib.loads(fewer.read_text())["parties"]) == {
        "agency",
        "bank",
        "city",
    }
    assert "key_server" in learned
    # quartiles
    assert json.loads(done.out)["entropy"] == pytest.approx(math.log(4), abs=0.01)
    assert "rotation" not in learned["agency"]


def test_kraskov_takes_it_as_it_is_and_says_what_that_shows(
    tmp_path: Path, call: Caller
) -> None:
    path = houses(tmp_path)
    found = json.loads(
        call(
            "select",
            path,
            "--keep",
            3,
            "--json",
            "--queries",
            80,
            "--estimator",
            "kraskov",
        ).out
    )
    assert set(found["chosen"]) == {"agency", "bank", "city"}
    assert all(len(group["participants"]) > 2 for group in found["groups"]), (
        "no sum that shows one party"
    )
    assert "entropy" not in found
    assert "rebuilt but for a rotation" in found["learned"]["agency"]
    two = tmp_path / "two.toml"
    two.write_text(HOUSES.split("[parties.broker]")[0])
    assert "Set bins" in call.fails(
        2, "select", two, "--keep", 1, "--estimator", "kraskov"
    )
    assert call("select", two, "--keep", 1, "--queries", 30, "-q").code == 0


def test_what_cannot_be_done_is_refused_first(
    path: Path, call: Caller, tmp_path: Path
) -> None:
    assert "at most 4" in call.fails(2, "select", path, "--keep", 5)
    assert "vf_ps" in call.fails(2, "select", path, "--keep", 2, "--method", "best")
    (tmp_path / "deep").mkdir()
    assert "relative to it" in call.fails(
        2, "select", path, "--keep", 2, "--write", tmp_path / "deep" / "x.toml"
    )
    assert "folder that exists" in call.fails(
        2, "select", path, "--keep", 2, "--write", tmp_path / "no" / "x.toml"
    )
    assert not list(tmp_path.glob("**/x.toml"))
    assert "is there already" in call.fails(
        2, "select", path, "--keep", 2, "--write", path.with_name("clinic.csv")
    )
    message = call.fails(2, "select", path, "--keep", 2, "--scheme", "rsa")
    assert message.strip().startswith(
        "ConfigError: A selection: [selection] scheme must be one of"
    )
    assert "--k must be less than 296, the training rows of 'clinic'" in call.fails(
        2, "select", path, "--keep", 2, "--k", 296
    )
    assert "is a class" in call.fails(2, "select", path, "--keep", 2, "--bins", 4)
    path.write_text('[data]\ndataset = "mnist"\n')
    assert "cut from the data set 'mnist'" in call.fails(
        2, "select", path, "--keep", 2, "--write", tmp_path / "y.toml"
    )
    path.write_text(HOUSES.split("[parties.bank]")[0])
    houses(tmp_path)
    assert "takes 2 or more participants with columns; found 1" in call.fails(
        2, "select", path, "--keep", 1
    )


def test_several_label_owners_select_jointly_or_one_of_them(
    tmp_path: Path, call: Caller
) -> None:
    file = small_multi.write(tmp_path)
    fewer = tmp_path / "fewer.toml"
    done = call("select", file, "--keep", 1, "--write", fewer, *FAST)
    assert done.code == 0, done.err
    assert "For 'north' alone: " in done.out
    (kept,) = tomllib.loads(fewer.read_text())["data_owners"]
    together = json.loads(call("select", file, "--keep", 1, "--json", *FAST).out)
    assert together["chosen"] == [kept["name"]]
    alone = json.loads(
        call("select", file, "--keep", 1, "--as", "south", "--json", *FAST).out
    )
    assert together["label_owners"]["south"]["scores"] == alone["scores"]
    assert "'west' is no label owner here" in call.fails(
        2, "select", file, "--keep", 1, "--as", "west"
    )


def test_between_machines_the_seed_is_agreed_on(path: Path, call: Caller) -> None:
    assert "--seed cannot be used" in call.fails(
        2, "select", path, "--keep", 2, "--engine", "flare", "--seed", 1
    )
    assert "needs --startup-kit" in call.fails(
        2, "select", path, "--keep", 2, "--engine", "flare"
    )
