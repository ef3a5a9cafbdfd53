"""Answers become a file that runs; what cannot be is refused with the cure."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pytest
from tests.planning.three import frames

from colonnade.errors import ColonnadeError, ConfigError, DataError
from colonnade.planning.questions import (
    QUICK,
    Asker,
    algorithms_for,
    ask,
    check,
    estimate,
)
from colonnade.planning.template import Answers, write
from colonnade.settings.algorithms import DEFAULT

T = TypeVar("T")


class Scripted(Asker):
    """Answers some questions, by a word in them, and takes the other guesses."""

    is_alone = False

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.said = list[str]()
        super().__init__(self.said.append)

    def text(self, question: str, default: str, accept: Callable[[str], T]) -> T:
        return accept(
            next(
                (given for word, given in self.answers.items() if word in question),
                default,
            )
        )

    def choose(self, question: str, options: Mapping[str, str], default: str) -> str:
        given = self.text(question, default, str)
        assert given in options
        return given

    def yes(self, question: str, default: bool) -> bool:
        return self.text(question, "yes" if default else "no", str) == "yes"


def tables(folder: Path, keep: float = 1.0) -> list[Path]:
    paths = []
    for number, (name, frame) in enumerate(frames().items()):
        path = folder / f"{name}.csv"
        frame.sample(frac=keep, random_state=number).to_csv(path, index=False)
        paths.append(path)
    return paths


def test_all_guesses(tmp_path: Path) -> None:
    silent = Scripted()
    found = ask(tables(tmp_path), silent)
    assert list(found.parties) == ["clinic", "lab", "scan"]
    assert (found.id, found.task, found.algorithm) == (
        "patient",
        "classification",
        DEFAULT,
    )
    assert found.parties["clinic"].label == "diagnosis"
    assert found.positive in ("ill", "well")
    assert [party.columns for party in found.parties.values()] == [None] * 3
    assert not found.is_private
    assert found.epsilon is None
    assert "All tables hold the same 90 rows." in silent.said
    check(found, tmp_path)


def test_answers_take_the_place_of_guesses(tmp_path: Path) -> None:
    given = Scripted(
        **{
            "lab.csv": "laboratory",
            "predicted": "clinic.age",
            "kind of label": "regression",
            "algorithm": "fdml",
        },
        **{"epochs": "4", "noise": "yes", "epsilon": "2.5"},
    )
    found = ask(tables(tmp_path, keep=0.9), given)
    assert list(found.parties) == ["clinic", "laboratory", "scan"]
    assert (found.parties["clinic"].label, found.task, found.algorithm) == (
        "age",
        "regression",
        "fdml",
    )
    assert (found.epochs, found.epsilon, found.is_private) == (4, 2.5, True)
    assert any("90" not in line and "are in all of them" in line for line in given.said)
    check(found, tmp_path)


def test_ids_may_have_other_names_and_spellings(tmp_path: Path) -> None:
    """What is written runs: one party names its own id column, and ids are compared
    without capitals."""
    paths = tables(tmp_path)
    lab = pd.read_csv(paths[1], dtype=str)
    lab["patient"] = lab["patient"].str.lower() + " "
    lab.rename(columns={"patient": "customer_no"}).to_csv(paths[1], index=False)
    silent = Scripted()
    found = ask(paths, silent)
    assert (found.id, [party.id for party in found.parties.values()]) == (
        "patient",
        [None, "customer_no", None],
    )
    assert (found.is_normalised, found.is_private) == (True, False)
    assert any("patient, customer_no, patient" in line for line in silent.said)
    text = write(found, tmp_path, "federation.toml")
    assert 'id = "customer_no"' in text
    assert 'ids = "normalised"' in text
    check(found, tmp_path)
    with pytest.raises(ColonnadeError, match="No id is in all tables then"):
        ask(paths, Scripted(normalised="no"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"lab.csv": "clinic"}, "name of its own"),
        ({"lab.csv": "a/b"}, "name of its own"),
        ({"fit together": "age"}, "'age' cannot be the id: in clinic.csv"),
        ({"looking for": "dead"}, "The classes of 'diagnosis' are ill and well"),
        ({"fit together": "shoes"}, "no column 'shoes'"),
        (
            {"fit together": "patient, patient"},
            "name one id column for all, or one for each",
        ),
        ({"predicted": "shoes"}, "it is in no table"),
        ({"predicted": "patient"}, "it is in no table"),
        ({"epochs": "ten"}, "a whole number, at least 1"),
        ({"noise": "yes", "epsilon": "-1"}, "above 0"),
        ({"noise": "yes", "epsilon": "much"}, "above 0"),
    ],
)
def test_answers_that_cannot_be(
    script: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ColonnadeError, match=words):
        ask(tables(tmp_path), Scripted(**script))


def test_rows_must_be_found_or_be_the_same(tmp_path: Path) -> None:
    with pytest.raises(ColonnadeError, match="must hold the same rows then"):
        ask(tables(tmp_path, keep=0.9), Scripted(**{"private set": "no"}))


def test_one_table_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(ColonnadeError, match="two tables at least"):
        ask(tables(tmp_path)[:1], Scripted())


def test_a_second_table_with_the_label_is_pointed_out_and_does_not_tell_it(
    tmp_path: Path,
) -> None:
    paths = tables(tmp_path)
    lab = pd.read_csv(paths[1]).merge(
        pd.read_csv(paths[0])[["patient", "diagnosis"]], on="patient"
    )
    lab.assign(site="A").to_csv(paths[1], index=False)
    scripted = Scripted()
    found = ask(paths, scripted)
    assert found.parties["lab"].columns == ("iron", "zinc")
    assert any("multi_vfl" in line for line in scripted.said)
    assert any("'site' has one value only" in line for line in scripted.said)


def test_too_few_rows_are_told_as_such(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    for path in paths:
        pd.read_csv(path).sort_values("patient").head(5).to_csv(path, index=False)
    with pytest.raises(
        DataError,
        match=r"^5 rows are in all tables, too few to train on .*: 6 are the least\.$",
    ):
        ask(paths, Scripted())


def test_two_files_of_one_name_are_two_parties(tmp_path: Path) -> None:
    first, second, third = tables(tmp_path)
    (tmp_path / "more").mkdir()
    other = second.rename(tmp_path / "more" / "clinic.csv")
    assert list(ask([first, other, third], Scripted()).parties) == [
        "clinic_1",
        "clinic_2",
        "scan",
    ]


def test_a_budget_that_could_not_be_kept_is_not_asked_for(tmp_path: Path) -> None:
    scripted = Scripted(algorithm="knn", noise="yes")
    assert ask(tables(tmp_path), scripted).epsilon is None
    assert (
        "knn cannot keep a privacy budget: total, neighbours leave without noise."
        in scripted.said
    )


def test_where_there_are_many_rows_it_points_to_trees(tmp_path: Path) -> None:
    told = []
    for rows in (90, 1200):
        scripted = Scripted()
        paths = []
        for name, frame in frames(rows).items():
            paths.append(tmp_path / f"{name}.csv")
            frame.to_csv(paths[-1], index=False)
        ask(paths, scripted)
        told.append(
            [
                line
                for line in scripted.said
                if "boosted_trees" in line and "usual choice" in line
            ]
        )
    assert [len(lines) for lines in told] == [0, 1]


def test_only_algorithms_that_can_serve_are_offered() -> None:
    assert "knn" in algorithms_for("classification", 3)
    # the first thing to try
    assert next(iter(algorithms_for("regression", 2))) == "one_shot"
    # encrypted distances would hide nothing
    assert "knn" not in algorithms_for("classification", 2)
    assert "vfedcce" not in algorithms_for("regression", 3)
    assert all(
        line.isprintable() and "sends" in line
        for line in algorithms_for("classification", 3).values()
    )


def test_what_would_not_run_is_not_written(tmp_path: Path) -> None:
    found = ask(tables(tmp_path), Scripted())
    wrong = Answers(**{**vars(found), "algorithm": "knn", "epsilon": None, "epochs": 0})
    with pytest.raises(ConfigError):
        check(wrong, tmp_path)
    assert DEFAULT in algorithms_for("classification", 2)


def test_a_column_that_divides_rows_divides_them_and_is_no_feature(
    tmp_path: Path,
) -> None:
    """As a feature it would tell nothing, and as a guess of the label nothing that is
    wanted."""
    rows = range(40)
    frame = pd.DataFrame(
        {"id": rows, "x": [0.1 * one for one in rows], "y": [one % 2 for one in rows]}
    )
    frame["set"] = [
        "test" if one % 5 == 0 else "valid" if one % 5 == 1 else "train" for one in rows
    ]
    frame.to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"id": rows, "z": [one * 0.3 for one in rows]}).to_csv(
        tmp_path / "b.csv", index=False
    )
    answers = ask([tmp_path / "a.csv", tmp_path / "b.csv"], Asker())
    assert (answers.split_by, answers.parties["a"].columns) == ("set", ("x",))
    check(answers, tmp_path)
    text = write(answers, tmp_path, "federation.toml")
    assert tomllib.loads(text)["data"]["split_by"] == "set"


def two_plain_tables(folder: Path) -> list[Path]:
    """No column has a label's name, and each could be one by its looks."""
    rows = range(40)
    one = {
        "id": rows,
        "outstanding": [1.5 * one for one in rows],
        "SEX": [one % 2 for one in rows],
    }
    pd.DataFrame(one).to_csv(folder / "a.csv", index=False)
    pd.DataFrame({"id": rows, "nb": [one % 3 for one in rows]}).to_csv(
        folder / "b.csv", index=False
    )
    return [folder / "a.csv", folder / "b.csv"]


def test_where_nobody_answers_no_label_is_taken_by_its_looks(tmp_path: Path) -> None:
    paths = two_plain_tables(tmp_path)
    with pytest.raises(
        DataError, match=r"none is taken by its looks alone\. .* as --label b\.nb\."
    ):
        ask(paths, Asker())
    assert ask(paths, Asker(), label="outstanding").parties["a"].label == "outstanding"
    asker = Scripted()
    assert ask(paths, asker).parties["b"].label == "nb"
    assert any("hardly more than chance" in text for text in asker.said)


def test_of_two_labels_by_name_none_is_taken_unasked(tmp_path: Path) -> None:
    a, b = two_plain_tables(tmp_path)
    pd.read_csv(a).assign(churn=[0, 1] * 20).to_csv(a, index=False)
    pd.read_csv(b).assign(fraud=[0, 1] * 20).to_csv(b, index=False)
    with pytest.raises(DataError, match=r"Several columns .* a\.churn, b\.fraud"):
        ask([a, b], Asker())


def test_the_rarer_class_is_positive_unless_somebody_says_otherwise(
    tmp_path: Path,
) -> None:
    for rare, common, value in (
        ("ja", "nein", "ja"),
        (0, 1, 0),
        (False, True, "False"),
    ):
        paths = two_plain_tables(tmp_path)
        frame = pd.read_csv(paths[0])
        frame["Ausfall"] = [rare if at % 5 == 0 else common for at in range(40)]
        frame.to_csv(paths[0], index=False)
        found = ask(paths, Asker())
        assert found.positive == value
        text = write(found, tmp_path, "federation.toml")
        assert tomllib.loads(text)["data"]["positive"] == value
        assert check(found, tmp_path).holdings.encoder.positive_class == rare
        other = ask(paths, Scripted(**{"looking for": str(common)}))
        assert str(other.positive) == str(common)
        assert check(other, tmp_path).holdings.encoder.positive_class == common


def test_ids_may_be_named_for_all_or_for_one(tmp_path: Path) -> None:
    paths = two_plain_tables(tmp_path)
    first, second = (pd.read_csv(path) for path in paths)
    first.assign(code=[f"C{n}" for n in first["id"]]).to_csv(paths[0], index=False)
    second.assign(ref=[f"C{n}" for n in second["id"]]).to_csv(paths[1], index=False)

    def ids(*given: str) -> list[str]:
        found = ask(paths, Asker(), label="nb", ids=given)
        return [party.id or found.id for party in found.parties.values()]

    assert ids() == ["id", "id"]
    assert ids("code") == ["code", "ref"], "the other is found by its values"
    assert ids("b.ref") == ["code", "ref"]
    assert ids("a.code", "b.ref") == ["code", "ref"]
    for given, words in (
        (("cod",), r"--id cod is in no table \(did you mean 'code'\?\)"),
        (("a.ref",), "--id a.ref is in no table"),
        (("a.SEX",), r"'SEX' cannot be the id: in a\.csv 2 of 40 ids appear more than"),
    ):
        with pytest.raises(DataError, match=words):
            ids(*given)


def test_leading_zeros_that_lose_rows_are_told(tmp_path: Path) -> None:
    """Three of 30 customers, the oldest, have ids with zeros in front in one table."""
    rows = range(30)
    bank = {"kunde": [f"{97 + n:03d}" for n in rows], "Ausfall": [0, 1, 0] * 10}
    shop = {"kunde": [str(97 + n) for n in rows], "umsatz": [0.3 * n for n in rows]}
    for name, frame in (("bank", bank), ("shop", shop)):
        pd.DataFrame(frame).to_csv(tmp_path / f"{name}.csv", index=False)
    said = list[str]()
    ask([tmp_path / "bank.csv", tmp_path / "shop.csv"], Asker(said.append))
    assert (
        "3 more would match without leading zeros: kunde ="
        ' "digits" under [alignment.rules].' in said
    )


def test_what_it_takes_is_estimated(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    costs = []
    for quick in (False, True):
        found = ask(paths, Asker(), quick=quick)
        assert found.algorithm == (QUICK if quick else DEFAULT)
        costs.append(estimate(check(found, tmp_path)))
    proposed, quick_one = costs
    assert proposed.seconds > 0
    assert proposed.bytes_sent > quick_one.bytes_sent > 0


def test_a_slip_of_the_pen_in_the_label_is_warned_of(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    paths[0].write_text(paths[0].read_text().replace(",ill\n", ", ill\n", 1))
    answers = ask(paths, Asker())
    with pytest.warns(
        UserWarning, match=r"of its 90 rows in a class of the label: ' ill' \(1\)"
    ):
        check(answers, tmp_path)
