"""A federation: the same numbers whichever way it is made or carried, and predictions
that fit its scores."""

from __future__ import annotations

import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import (
    Task,
    equal,
    federation,
    frames,
    learned_of,
    models_of,
    quick,
    splitnn,
    tensors,
    write,
)

from colonnade.errors import ConfigError, DataError, PartyError
from colonnade.federation import Federation, load
from colonnade.rows.holdings import Holdings

BOTH = [quick(), splitnn()]
IDS = ["vimadmm", "splitnn"]


def trained(*args: Any, **kwargs: Any) -> Federation:
    made = federation(*args, **kwargs)
    for _ in made.train():
        pass
    return made


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_files_and_frames_give_the_same_federation_bit_for_bit(
    settings: Any, tmp_path: Path
) -> None:
    path = write(tmp_path, settings=settings)
    from_file = Federation.from_toml(path)
    read = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in ("clinic", "lab")}
    from_frames = federation(read, settings)
    assert equal(learned_of(from_file), learned_of(from_frames))
    losses = [[step.loss for step in one.train()] for one in (from_file, from_frames)]
    assert losses[0] == losses[1]
    assert equal(learned_of(from_file), learned_of(from_frames))


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_the_seed_decides_everything(settings: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = trained(settings=settings)
    torch.manual_seed(2)  # the global generator has no say
    assert equal(learned_of(first), learned_of(trained(settings=settings)))
    other = trained(settings={**settings, "federation": {"device": "cpu", "seed": 1}})
    mine = models_of(first)
    its = models_of(other)
    weights = [place for place in mine if place.endswith("weight")]
    assert weights
    assert not any(torch.equal(mine[place], its[place]) for place in weights)
    path = write(tmp_path, settings=settings)
    assert Federation.from_toml(path, seed=1).settings.engine.seed == 1


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    trained()
    assert torch.equal(before, torch.random.get_rng_state())


def test_train_yields_one_step_per_batch_and_continues_where_it_stands() -> None:
    one = federation()
    other = federation()
    steps = list(one.train())
    assert (
        [step.batch.step for step in steps]
        == list(range(8))
        == list(range(len(one.batches)))
    )
    assert [step.batch.name for step in steps] == [
        f"train/{epoch}/{number}" for epoch in (0, 1) for number in range(4)
    ]
    parts = [*islice(other.train(), 3), *other.train()]
    assert [step.loss for step in parts] == [step.loss for step in steps]
    assert equal(learned_of(one), learned_of(other))
    assert list(one.train()) == []


@pytest.mark.parametrize("task", ["binary", "classes"])
@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_predictions_fit_scores_labels_and_accuracy(task: Task, settings: Any) -> None:
    one = trained(frames(task=task), settings)
    everything = one.predict()
    truth = frames(task=task)["clinic"].set_index("patient")["diagnosis"]
    assert everything.ids.tolist() == sorted(truth.index)
    assert everything.classes == tuple(sorted(set(truth)))
    assert everything.scores.shape == (80, len(everything.classes))
    assert everything.scores.sum(1) == pytest.approx(np.ones(80), abs=1e-6)
    best = np.array(everything.classes)[everything.scores.argmax(1)]
    assert everything.labels.tolist() == best.tolist()
    for split in ("train", "validation", "test"):
        rows = one.holdings.splits[split].numpy()
        right = everything.labels[rows] == truth[everything.ids[rows]].to_numpy()
        assert one.evaluate(split)["accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    wanted = ["P070", "P003", "P003"]
    some = one.predict(wanted)
    assert some.ids.tolist() == wanted
    assert some.labels.tolist() == [
        everything.labels[70],
        everything.labels[3],
        everything.labels[3],
    ]
    frame = some.to_frame()
    assert list(frame.columns) == [
        "patient",
        "prediction",
        *(f"score_{everything.classes[place]}" for place in everything.in_order),
        "missing",
    ]
    assert "missing" not in everything.to_frame(), "no id was asked for"
    assert frame["patient"].tolist() == some.to_frame("id")["id"].tolist() == wanted


def test_whole_numbers_as_labels_come_back_as_whole_numbers() -> None:
    given = frames()
    given["clinic"]["diagnosis"] = np.where(given["clinic"]["diagnosis"] == "ill", 7, 2)
    predicted = trained(given).predict()
    assert predicted.classes == (2, 7)
    assert set(predicted.labels.tolist()) <= {2, 7}


@pytest.mark.parametrize(
    "settings",
    [
        splitnn(algorithm={"learning_rate": 0.05}, train={"epochs": 12}),
        quick(train={"epochs": 12}),
    ],
    ids=["splitnn", "vimadmm"],
)
def test_regression_learns_and_speaks_in_the_labels_own_units(settings: Any) -> None:
    given = frames(rows=160, task="regression")
    one = trained(given, settings)
    scores = one.evaluate("test")
    assert scores["r2"] > 0.5
    predicted = one.predict()
    assert predicted.classes == ()
    assert list(predicted.to_frame().columns) == ["patient", "prediction"]
    assert predicted.scores[:, 0].tolist() == predicted.labels.tolist()
    truth = given["clinic"].set_index("patient")["diagnosis"]
    rows = one.holdings.splits["test"].numpy()
    error = predicted.labels[rows] - truth[predicted.ids[rows]].to_numpy()
    assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
    assert scores["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-4)


def test_ids_that_not_every_party_holds_are_named_and_the_others_predicted() -> None:
    one = trained(frames())
    whole = one.predict(["P070", "P003"])
    asked = ["X", "P070", "Y", "P003", "X"]

    with pytest.warns(
        UserWarning, match=r"^2 of 5 ids cannot be .*: clinic or lab \(2\)"
    ):
        some = one.predict(asked)

    assert some.ids.tolist() == ["P070", "P003"]
    assert np.array_equal(some.scores, whole.scores)
    frame = some.to_frame()
    assert frame["patient"].tolist() == asked
    lacked = "clinic or lab"
    assert frame["missing"].tolist() == [lacked, "", lacked, "", lacked]
    assert frame["prediction"].isna().tolist() == [True, False, True, False, True]
    predicted = frame[frame["missing"] == ""].reset_index(drop=True)
    pd.testing.assert_frame_equal(predicted, whole.to_frame())


def test_with_strict_an_id_that_not_every_party_holds_is_refused() -> None:
    one = federation()
    wrong = r"1 of 2 ids are not among the 80 rows that 'clinic' shares with .*, such as 'X'"
    with pytest.raises(DataError, match=wrong):
        one.predict(["P001", "X"], strict=True)
    assert one.predict(["P001"], strict=True).missing is None
    with pytest.raises(DataError, match=r"There are no ids to predict"):
        one.predict([])
    with pytest.raises(DataError, match=r"2 of 2 ids are not among"):
        one.predict(["X", "Y"])


@pytest.mark.parametrize(
    ("labels", "dtype"), [([3, 7], "Int64"), ([True, False], "boolean")]
)
def test_labels_stay_what_they_are_where_some_are_empty(
    labels: list[Any], dtype: str
) -> None:
    given = frames()
    given["clinic"]["diagnosis"] = np.where(
        given["clinic"]["diagnosis"] == "ill", *labels
    )
    one = federation(given)
    one.is_trained = True
    with pytest.warns(UserWarning, match="cannot be predicted"):
        frame = one.predict(["P001", "X"]).to_frame()
    assert frame["prediction"].dtype == dtype
    assert frame["prediction"][0] in labels
    assert pd.isna(frame["prediction"][1])


def test_rows_by_an_unknown_name_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"There are no rows called 'tset'; there are 'train', 'validation', 'test'"
        ),
    ):
        federation().evaluate("tset")


def test_predicting_does_not_change_what_was_agreed() -> None:
    one = federation()
    agreed = one.batches.fingerprint()
    one.predict(["P001"])
    assert one.batches.fingerprint() == agreed


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
@pytest.mark.parametrize(
    "engine", [{"through_bytes": True}, {"threads": "always"}, {"threads": "never"}]
)
def test_what_carries_the_calls_changes_no_bit(
    settings: Any, engine: dict[str, Any]
) -> None:
    alone = {"device": "cpu", "cohort": "off"}  # a cohort adds up in another order
    one = trained(settings={**settings, "federation": alone})
    other = trained(settings={**settings, "federation": {**alone, **engine}})
    assert equal(learned_of(one), learned_of(other))
    assert one.evaluate("test") == other.evaluate("test")
    totals = [
        {name: book.total("out") for name, book in fed.ledgers.items()}
        for fed in (one, other)
    ]
    assert totals[0] == totals[1]


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_a_cohort_gives_the_same_numbers(settings: Any) -> None:
    alone = trained(
        settings={**settings, "federation": {"device": "cpu", "cohort": "off"}}
    )
    stacked = trained(
        settings={**settings, "federation": {"device": "cpu", "cohort": "on"}}
    )
    assert [list(cohort.members) for cohort in stacked.cohorts] == [["clinic", "lab"]]
    assert not alone.cohorts
    mine = models_of(alone)
    its = models_of(stacked)
    assert mine.keys() == its.keys()
    for place in mine:
        torch.testing.assert_close(mine[place], its[place], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("record", [False, True])
def test_parties_are_stacked_once_they_train(record: bool, tmp_path: Path) -> None:
    """Whoever is built to be looked at, or to get the states of another, is not stacked
    for nothing."""
    stacked = quick(train={"epochs": 1}, federation={"device": "cpu", "cohort": "on"})
    one = federation(settings=stacked, record=record)
    assert not one.cohorts
    for _ in one.train():
        assert [list(cohort.members) for cohort in one.cohorts] == [["clinic", "lab"]]
        assert not one.cohorts[0].fresh, "it did not run stacked"
    assert one.recording is None or one.recording.of("lab").total() > 0
    one.save(tmp_path / "run")
    loaded = load(tmp_path / "run", frames=frames(), record=record)
    assert [list(cohort.members) for cohort in loaded.cohorts] == [["clinic", "lab"]]
    assert torch.equal(loaded.outputs("test"), one.outputs("test"))


def test_each_party_may_have_a_model_of_its_own() -> None:
    lab = {"model": {"name": "linear", "width": 9}}
    clinic = {"model": {"name": "tests.federation.small:Tower", "depth": 2}}
    one = trained(settings=quick(parties={"lab": lab, "clinic": clinic}))
    assert one.driver.widths == {"clinic": 3, "lab": 9}
    assert (
        sum(
            "layers" in name
            for name, _ in one.owners["clinic"].model.named_parameters()
        )
        == 4
    )
    fresh = federation(settings=quick(parties={"lab": lab, "clinic": clinic}))
    before, after = (
        dict(tensors(fed.owners["clinic"].model.state_dict())) for fed in (fresh, one)
    )
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_a_model_that_cannot_be_had_is_refused_with_its_owner() -> None:
    with pytest.raises(
        ConfigError,
        match=r"The model 'tests\.federation\.small:Towre' of 'lab' cannot be imported",
    ):
        federation(
            settings=quick(parties={"lab": {"model": "tests.federation.small:Towre"}})
        )
    with pytest.raises(
        ConfigError, match=r"The model of 'clinic' is 'mpl' \(did you mean 'mlp'\?\)"
    ):
        federation(settings={**quick(), "model": "mpl"})


def test_a_failing_model_names_its_party_and_the_batch() -> None:
    one = federation(
        settings=quick(parties={"lab": {"model": "tests.federation.small:Broken"}})
    )
    with pytest.raises(
        PartyError,
        match=(
            r"'lab' failed while answering .*Embed at batch train/0/0: ValueError: the"
            r" tower"
        ),
    ):
        next(one.train())
    everybody = federation(
        settings={**quick(), "model": "tests.federation.small:Broken"}
    )
    with pytest.raises(
        PartyError,
        match=r"'clinic, lab' failed while answering .*: ValueError: the tower",
    ):
        next(everybody.train())
    with pytest.raises(
        PartyError, match=r"'clinic' failed while answering .*Introduce: RuntimeError"
    ):
        federation(
            settings={
                **quick(),
                "model": {
                    "name": "torch.nn:Linear",
                    "in_features": 7,
                    "out_features": 2,
                },
            }
        )


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_between_two_roles_of_one_party_nothing_crosses(settings: Any) -> None:
    one = trained(settings=settings)
    clinic = one.ledgers["clinic"]
    assert clinic.total("own") > 0
    assert clinic.total("out", "clinic") == clinic.total("in", "clinic") == 0
    assert (
        clinic.total("out")
        == clinic.total("out", "lab")
        == one.ledgers["lab"].total("in")
    )
    assert clinic.total("in") == one.ledgers["lab"].total("out")
    alone = trained({"clinic": frames()["clinic"]}, settings)
    book = alone.ledgers["clinic"]
    assert (book.total("out"), book.total("in")) == (0, 0)
    assert {entry.direction for entry in book.entries} == {"own"}


@pytest.mark.parametrize("name", ["vimadmm", "splitnn"])
def test_divergence_is_told_with_its_cure(name: str) -> None:
    settings = {
        **quick(train={"epochs": 40}),
        "algorithm": {"name": name, "optimizer": "sgd", "learning_rate": 1e9},
    }
    given = frames(task="regression")
    with pytest.raises(
        ConfigError,
        match=(
            r"Training diverged: the loss is (nan|inf) at batch train/\d+/\d+\. Lower"
            r" learning"
        ),
    ):
        trained(given, settings)


@pytest.mark.parametrize(
    "device", ["cuda:99", "cuda" if not torch.cuda.is_available() else "cuda:98", "gpu"]
)
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"\[federation\] device '{device}' cannot be used here: \S+"
    ):
        federation(settings=quick(federation={"device": device}))


def test_auto_takes_what_there_is() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert federation(settings={**quick(), "federation": {}}).device.type == expected


@pytest.mark.parametrize("settings", BOTH, ids=IDS)
def test_categories_and_gaps_train(settings: Any) -> None:
    given = frames(rows=120)
    random = np.random.default_rng(3)
    given["lab"]["clinic ward"] = random.choice(["east", "west", None], size=120)  # type: ignore[arg-type]
    given["lab"]["smoker"] = random.choice([True, False], size=120)
    given["lab"].loc[given["lab"].index[:30], "iron"] = np.nan
    one = trained(given, {**settings, "train": {"epochs": 20, "batch_size": 16}})
    features = one.holdings.columns["lab"].features
    assert features is not None
    # two numbers, one of them with a mark for gaps, 3 wards, 2 truths
    assert features.shape == (120, 2 + 1 + 3 + 2)
    assert one.evaluate("train")["accuracy"] > 0.85


def test_frames_that_fit_no_party_are_refused() -> None:
    with pytest.raises(
        DataError,
        match=(
            r"No frame has the label column 'diagnoses' \(did you mean 'diagnosis'\?\)"
        ),
    ):
        Federation.from_frames(
            frames(), id="patient", label="diagnoses", settings=quick()
        )
    with pytest.raises(
        DataError, match=r"'clinic' has no column 'person', named as its id"
    ):
        Federation.from_frames(
            frames(), id="person", label="diagnosis", settings=quick()
        )
    with pytest.raises(
        ConfigError,
        match=(
            r"settings is a mapping of tables; found 'f.toml'\. .*Federation\.from_toml"
        ),
    ):
        Federation.from_frames(
            frames(),
            id="patient",
            label="diagnosis",
            settings="f.toml",  # type: ignore[arg-type]
        )


def test_one_id_as_text_is_not_taken_for_its_letters() -> None:
    with pytest.raises(
        DataError,
        match=(
            r"The ids to predict are a list; found the text 'P001'\. Write \['P001'\]"
        ),
    ):
        federation().predict("P001")


def test_a_recorded_federation_keeps_what_reached_each_party() -> None:
    one = trained(record=True)
    plain = trained()
    assert equal(learned_of(one), learned_of(plain))
    assert one.recording is not None
    assert plain.recording is None
    assert set(one.recording.transcripts) == {"clinic", "lab"}


def test_the_label_owner_alone_holds_labels() -> None:
    holdings: Holdings = federation().holdings
    assert list(holdings.label_owners) == ["clinic"]
    assert set(holdings.state_of("lab")) == {"columns"}


def test_new_rows_that_are_predicted_twice_are_rounded_anew() -> None:
    packed = {
        "embedding": {
            "codec": {"name": "quantize", "levels": 4, "rounding": "dithered"}
        }
    }
    settings = splitnn(parties={"lab": {"outbox": packed}}, train={"epochs": 1})
    one = federation(settings=settings)
    first, second = (one.predict(frames=frames()).scores for _ in range(2))
    assert abs(first - second).max() > 1e-6


def test_a_model_that_nobody_trained_says_so_when_it_is_asked(tmp_path: Path) -> None:
    untrained = federation()
    with pytest.warns(UserWarning, match=r"was not trained: .* Call fit\(\) first"):
        untrained.predict(["P001"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "This federation was not trained")
        one = federation(settings=quick(train={"epochs": 1}))
        list(one.train())
        one.save(tmp_path / "run")
        started = Federation.from_frames(
            frames(),
            id="patient",
            label="diagnosis",
            settings=one.settings.to_mapping(),
            start_from=tmp_path / "run",
        )
        for trained in (one, load(tmp_path / "run", frames=frames()), started):
            trained.predict(["P001"])


def test_one_organisation_is_no_federation_which_is_said() -> None:
    alone = frames()["clinic"]
    with pytest.warns(
        UserWarning,
        match="'clinic' holds all columns and the labels: an ordinary model is trained",
    ):
        Federation.from_frames({"clinic": alone}, id="patient", label="diagnosis")


def test_new_rows_are_predicted_from_frames_without_labels() -> None:
    one = federation(settings=splitnn())
    one.fit()
    more = frames(rows=90)
    new = {
        k: v[v["patient"] >= "P080"].drop(columns="diagnosis", errors="ignore")
        for k, v in more.items()
    }
    sent = one.ledgers["lab"].total("out")
    found = one.predict(frames=new)
    assert found.ids.tolist() == [f"P{number:03d}" for number in range(80, 90)]
    assert one.ledgers["lab"].total("out") > sent, (
        "what crossed for it is in the same ledger"
    )
    known = {
        k: v.drop(columns="diagnosis", errors="ignore") for k, v in frames().items()
    }
    old = one.predict(["P003", "P001"])
    np.testing.assert_allclose(
        one.predict(["P003", "P001"], frames=known).scores, old.scores, rtol=1e-6
    )
    fewer = {**new, "lab": new["lab"][new["lab"]["patient"] >= "P084"]}
    with pytest.warns(
        UserWarning,
        match=r"Rows that not all parties hold .* left out: 4 of 'clinic'\.",
    ):
        assert len(one.predict(frames=fewer).ids) == 6
    with pytest.raises(
        DataError,
        match=r"'lab' took part in training, and there is no table of it\. Give it",
    ):
        one.predict(frames={"clinic": new["clinic"]})
    with pytest.raises(
        DataError,
        match=r"There is no row to predict: .* tables of 'clinic', 'lab', who hold",
    ):
        one.predict(frames={})
    assert "<table" in found._repr_html_()


def test_a_partner_that_is_missing_degrades_what_may_be_degraded() -> None:
    one = federation(
        settings={
            **splitnn(federation={"on_missing": "skip"}),
            "algorithm": {"name": "fdml"},
        }
    )
    one.fit()
    found = one.predict(frames={"clinic": frames()["clinic"].drop(columns="diagnosis")})
    assert set(found.degraded or ()) == {"lab"}


def test_who_fits_twice_is_told_that_nothing_was_trained() -> None:
    one = federation(settings=splitnn())
    first = one.fit()
    again = one.fit()
    assert first.stopped == "all epochs done"
    assert again.stopped.startswith(
        "nothing was trained: all 2 epochs were done before."
    )
    assert "nothing was trained" in again._repr_html_()
    assert "lab" in one._repr_html_()


def test_who_fits_on_is_told_that_it_goes_on() -> None:
    one = federation(settings=splitnn())
    next(iter(one.train()))
    with pytest.warns(
        UserWarning, match="was trained before, for 1 rounds, and goes on from there"
    ):
        one.fit()
