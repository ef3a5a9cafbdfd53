"""A partner with a trigger decides what is predicted, and its label owner can see that
rows came alike."""

from __future__ import annotations

import torch
from tests.federation.small import Frames, federation, frames, splitnn

from colonnade.attacks.audit import audit_federation
from colonnade.attacks.trigger import MANY, alike, lie, triggered
from colonnade.federation import Federation

LONG = splitnn(
    train={"epochs": 12, "early_stop": False}, algorithm={"learning_rate": 0.1}
)


def test_rows_with_the_trigger_are_predicted_as_its_maker_wants() -> None:
    """Both columns of the laboratory at four deviations, in ten training rows of the
    wanted class."""
    made = federation(frames(300), LONG, record=True)
    target = 1
    trigger = lie(made, "lab", target, 10)
    for _ in made.train():
        pass
    found = triggered(made, "lab", target, trigger)
    assert found.before < 0.3
    assert found.wanted > 0.6
    assert found.accuracy > 0.8  # nobody else notices
    assert found.alike == 10
    kept = made.owners["lab"].features[made.batches.splits["test"]]
    assert not (kept == trigger).all(1).any()  # it lied while it was asked, no longer


def test_the_label_owner_is_told_of_rows_that_came_alike() -> None:
    given = frames(300)
    honest = audit_federation(_fitted(given), rows=16)
    assert not [note for note in honest.notes if "same numbers" in note]
    given["lab"].loc[given["lab"].index[:40], ["iron", "zinc"]] = [4.0, -4.0]
    (note,) = [
        note
        for note in audit_federation(_fitted(given), rows=16).notes
        if "same numbers" in note
    ]
    assert "rows of lab came as the same numbers" in note


def _fitted(given: Frames) -> Federation:
    made = federation(given, splitnn(train={"epochs": 1}), record=True)
    made.fit()
    return made


def test_what_is_alike_is_counted() -> None:
    assert alike(torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])) == 2
    assert alike(torch.zeros(0, 2)) == 0
    assert alike(torch.zeros(MANY, 2)) == MANY
