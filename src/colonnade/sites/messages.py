"""What organisations on different machines ask each other about a run, beside the
algorithm's own requests."""

from __future__ import annotations

from colonnade.core import Done, Message, Request
from colonnade.core.release import Released


class Join(Request[Done]):
    """Is this the federation that you agreed to?"""

    agreed: str


class Prepared(Message):
    rows: int  # that it shares with the asker, before `sides` leave any out
    same: bool  # whether their ids have the digest that it was told
    step: int  # where its training stands
    counts: bool  # whether it counts what its rows are released with


class Prepare(Request[Prepared]):
    """To who holds columns: build your part of this run."""

    run: str  # names a folder under each organisation's own runs
    outputs: int  # of the joint model: how wide a local head must be
    resume: bool
    number: int = 0  # of the checkpoint to resume from; 0: none was saved by all
    # that train, also such as this party lacks ([data] rows = "label_owner"); 0: those
    # it shares
    rows: int = 0
    # that put its rows into batches, where several keys are compared (`core.by_id`)
    numbers: Released | None = None
    # which rows train, where that does not follow from their ids
    # (`rows.sides.sides_to_tell`)
    sides: str = ""
    # a digest of all the asker's ids (`Site.digest`); none where they were compared
    # privately
    ids: str = ""
    moment: str = ""  # of an audit that repeats some of a run; "": the run itself
    # as who drives it drew it (`runs.run_identity`)
    run_id: str = ""


class Align(Request[Done]):
    """To a label owner: find the rows that you share with all who hold columns."""


class Ready(Message):
    """A label owner that has met those who hold columns."""

    rows: dict[str, int]  # of each split
    task: str
    step: int  # where its training stands
    counts: bool  # whether somebody with columns counts what rows are released with


class GetReady(Request[Ready]):
    """To a label owner: build your part of this run, and have the others build theirs."""

    run: str
    resume: bool
    number: int  # of the checkpoint to resume from; 0: none was saved by all
    moment: str = ""  # of an audit that repeats some of a run; "": the run itself
    # as who drives it drew it (`runs.run_identity`)
    run_id: str = ""


class Measured(Message):
    scores: dict[str, float]  # none where it has no such rows
    rows: int


class Measure(Request[Measured]):
    """To a label owner: how good is the model on your rows of a split?"""

    split: str
    model: str


class Numbers(Message):
    numbers: tuple[int, ...]  # the newest first


class Kept(Request[Numbers]):
    """Which checkpoints of a run do you have?"""

    run: str


class Save(Request[Done]):
    number: int
    step: int
    common: int  # the last one that all have


class Close(Request[Done]):
    outcome: str


class KeepBest(Request[Done]):
    """No model scored better on validation rows: remember yours as it is now."""


class TakeBest(Request[Done]):
    """Training has ended: have the model again that you were told to remember."""
