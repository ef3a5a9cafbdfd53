"""What is used where a federation file says nothing.

The same holds for files, `colonnade init` and data frames alike:

    [algorithm]    its `for_tables`; its defaults are its paper's settings
    [model]        an mlp by training rows and classes (`sizes`), with tanh: no unit dies
    [preprocess]   quantile bins (`rows.prepared`)
    [train]        batches and epochs by the number of training rows (`by_rows`), few
                   epochs where noise is made for a budget (`with_few_epochs`)

A named data set is an experiment, and keeps the papers' settings; `preset` names those
of one for other data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.algorithms import AlgorithmSettings

Tables = Mapping[str, Any]

MODEL: dict[str, Any] = {
    "name": "mlp",
    "hidden": "auto",
    "width": "auto",
    "activation": "tanh",
    "ending": "auto",
}
"""The local model, where nobody says otherwise."""

NARROWEST = 8
WIDEST_BY_ROWS = 32
WIDEST_BY_CLASSES = 64
"""Numbers a row that a party sends: at least, at most for many rows, and at most for
many classes."""

SMALLEST_BATCH = 16
LARGEST_BATCH = 512
BATCHES_PER_EPOCH = 24
"""Aim for at least this many batches in an epoch, within the two bounds above."""

TRAINING_STEPS = 3000
FEWEST_EPOCHS = 20
MOST_EPOCHS = 100
MOST_EPOCHS_TO_OPTIMUM = 300
"""For algorithms that train to a single optimum. Small tables reach it in 15 to 160
epochs."""
EPOCHS_WITH_NOISE = 5
"""Epochs at most where noise is made for a budget: each of them makes all noise larger
(docs/how-to-tune.md)."""
ROWS_OF_SEVERAL = 10_000
"""Training rows for which batches and rounds are made where several organisations have
labels. Each of them knows its own rows alone, so it is one number for all."""

_VIM_TRAINING = {"epochs": 10, "batch_size": 1024, "patience_drop": 0.02}
_SCALED_NUMBERS = {"numbers": "standard"}
PRESETS: dict[str, dict[str, Any]] = {
    "vim-mnist": {
        "train": _VIM_TRAINING,
        "preprocess": _SCALED_NUMBERS,
        "model": {
            "name": "mlp",
            "hidden": [120],
            "width": 60,
            "activation": "relu",
            "ending": "same",
        },
    },
    "vim-cifar": {
        "train": _VIM_TRAINING,
        "preprocess": _SCALED_NUMBERS,
        "model": {"name": "cnn", "channels": [32, 64, 64, 128], "width": 60},
    },
}
"""Papers' settings by name, where a file leaves them out. The algorithm's own are then
its paper's."""
_FOR_DATA_SETS = {
    "train": {**_VIM_TRAINING, "patience_drop": 0.0},
    "preprocess": _SCALED_NUMBERS,
}


def suggested(tables: Tables, kind: type[AlgorithmSettings], whose: str) -> Tables:
    """The tables of a file, completed with what is suggested where they say nothing.

    Args:
        tables: The tables, as they were written. What is wrong in them stays as it is.
        kind: The settings of the algorithm that they choose.
        whose: The file that they come from, for errors.
    """
    given = {section: value for section, value in tables.items() if section != "preset"}
    preset = tables.get("preset")
    if preset is not None:
        return _laid_under(given, _preset(preset, whose))
    data = given.get("data")
    if isinstance(data, Mapping) and data.get("dataset") is not None:
        return _laid_under(given, _FOR_DATA_SETS)
    settings = dict(kind.for_tables)
    if _may_lack_parties(given):
        settings |= kind.for_lacking_rows
    filled = _laid_under(given, {"algorithm": settings})
    if kind.one_weight_per_column:
        return filled
    filled["model"] = _completed_model(given.get("model", {}))
    for section in ("parties", "data_owners"):
        if section in filled:
            filled[section] = _with_completed_models(filled[section])
    return filled


def _may_lack_parties(given: Tables) -> bool:
    """Whether these tables of a file say that a row may be trained on or predicted
    without a party's part."""

    def written(section: str, key: str) -> Any:
        table = given.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    rows_differ = written("data", "rows") == "label_owner"
    is_left_out = bool(written("train", "party_dropout"))
    is_skipped = written("federation", "on_missing") == "skip"
    return rows_differ or is_left_out or is_skipped


def _preset(name: Any, whose: str) -> dict[str, Any]:
    if not isinstance(name, str) or name not in PRESETS:
        hint = did_you_mean(str(name), list(PRESETS))
        raise ConfigError(
            f"{whose}: there is no preset {name!r}{hint}; there are"
            f" {', '.join(PRESETS)}."
        )
    return PRESETS[name]


def _laid_under(given: Tables, suggestion: Tables) -> dict[str, Any]:
    """The given tables with suggestions for keys that they leave out.

    Nothing is suggested for a model of another name.
    """
    merged = dict(given)
    for section, values in suggestion.items():
        own = given.get(section, {})
        if section == "model" and _model_name(own, values["name"]) != values["name"]:
            continue
        if isinstance(own, Mapping):
            merged[section] = {**values, **own}
    return merged


def _model_name(own: Any, usual: str) -> Any:
    """The name of a model that is given as a name or as a table."""
    return own.get("name", usual) if isinstance(own, Mapping) else own


def _completed_model(own: Any) -> Any:
    """An mlp with all its settings. Another model stays as it is."""
    if own == "mlp":
        return MODEL
    if not isinstance(own, Mapping) or own.get("name", "mlp") != "mlp":
        return own
    return {**MODEL, **own}


def _with_completed_models(parties: Any) -> Any:
    """Complete the models of owners who have one of their own, in a list or by name."""
    if isinstance(parties, list):
        return [_with_completed_model(party) for party in parties]
    if isinstance(parties, Mapping):
        return {name: _with_completed_model(party) for name, party in parties.items()}
    return parties


def _with_completed_model(party: Any) -> Any:
    if not isinstance(party, Mapping) or party.get("model") is None:
        return party
    return {**party, "model": _completed_model(party["model"])}


def by_rows(rows: int, *, in_batches: bool, converges: bool = False) -> tuple[int, int]:
    """The batch size and the most epochs for a table with this many training rows."""
    batch_size = batch_size_for(rows)
    steps_per_epoch = math.ceil(rows / batch_size) if in_batches and rows else 1
    return batch_size, most_epochs_for(steps_per_epoch, converges=converges)


def batch_size_for(rows: int) -> int:
    """The largest power of two that still leaves `BATCHES_PER_EPOCH` batches in an
    epoch."""
    size = SMALLEST_BATCH
    while size < LARGEST_BATCH and 2 * size * BATCHES_PER_EPOCH <= rows:
        size *= 2
    return size


def most_epochs_for(steps_per_epoch: int, *, converges: bool) -> int:
    """The number of epochs after which training ends at the latest.

    A small table gets enough steps to learn from. A large table is not read more often
    than it needs. Early stopping usually ends a run sooner.
    """
    most = MOST_EPOCHS_TO_OPTIMUM if converges else MOST_EPOCHS
    return max(FEWEST_EPOCHS, min(most, TRAINING_STEPS // steps_per_epoch))


def sizes(rows: int, outputs: int) -> dict[str, Any]:
    """The sizes of an mlp for so many training rows and outputs of the joint model.

    A wide model learns few rows by heart, so its hidden layer has the root of the rows,
    as a power of two, and it sends half of that. A head tells classes apart by
    directions in what it is sent, and gets two for each class, however few the rows.
    Where that is more, directions bend, and else the last layer is linear.
    """
    width = NARROWEST
    while width < WIDEST_BY_ROWS and (4 * width) ** 2 <= rows:
        width *= 2
    for_classes = min(2 * outputs, WIDEST_BY_CLASSES)
    bends = width < for_classes
    while width < for_classes:
        width *= 2
    return {
        "hidden": [2 * width],
        "width": width,
        "ending": "same" if bends else "none",
    }


def sized(model: Any, measures: Tables) -> Any:
    """Put sizes into a model where it leaves them open. A model that is only named, or
    none, stays as it is."""
    if not isinstance(model, Mapping):
        return model
    return {
        key: measures.get(key, value) if value == "auto" else value
        for key, value in model.items()
    }
