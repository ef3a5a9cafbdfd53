"""What is used where nobody says otherwise: one place, for files, `colonnade init` and data frames alike.

    [algorithm]    what its record has `for_tables`                         (its Config has its paper's settings)
    [model]        an mlp by training rows and classes, tanh                `sizes`; no unit can die, all are as wide
    [preprocess]   quantile bins                                            `federation_file.prepared_as`
    [train]        batches and epochs by the number of training rows        `by_rows`

A named data set is an experiment, and keeps the papers' settings; `preset` names those of one for other data.
Everything is written out in a run's own federation.toml, so what a later version would suggest changes no run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError

MODEL: dict[str, Any] = {"name": "mlp", "hidden": "auto", "width": "auto", "activation": "tanh", "ending": "auto"}
NARROW, USUAL, WIDE = 8, 32, 64
"""Numbers a row that a party sends: at least, at most for many rows, and at most for many classes."""
LEAST, MOST, BATCHES = 16, 512, 24
"""Rows of a batch, and batches of an epoch where neither bound is met."""
STEPS, FEWEST, LONGEST = 3000, 20, 100
"""Steps in all, and epochs, at most: early stopping ends a run sooner."""

SEVERAL = 10_000
"""Training rows for which batches and rounds are made where several organisations have labels."""

_MLP: dict[str, Any] = {"name": "mlp", "hidden": [120], "width": 60, "activation": "relu", "ending": "same"}
_VIM: dict[str, Any] = {
    "train": {"epochs": 10, "batch_size": 1024, "patience_drop": 0.02},
    "preprocess": {"numbers": "standard"},
}
PRESETS: dict[str, dict[str, Any]] = {
    "vim-mnist": {**_VIM, "model": _MLP},
    "vim-cifar": {**_VIM, "model": {"name": "cnn", "channels": [32, 64, 64, 128], "width": 60}},
}
"""Papers' settings by name, where a file leaves them out; the algorithm's own are then those of its Config."""
PARTY_DROPOUT = 0.2
"""How often a partner is left out of a training batch, where rows differ and nobody says otherwise."""


def suggested(tables: Mapping[str, Any], algorithm: AnyAlgorithm, where: str) -> dict[str, Any]:
    """The tables with what is suggested where they say nothing."""
    given = {section: value for section, value in tables.items() if section != "preset"}
    preset = tables.get("preset")
    if preset is not None:
        if not isinstance(preset, str) or preset not in PRESETS:
            hint = did_you_mean(str(preset), list(PRESETS))
            raise ConfigError(f"{where}: there is no preset {preset!r}{hint}; there are {', '.join(PRESETS)}.")
        return _under(given, PRESETS[preset])
    data = given.get("data")
    if isinstance(data, Mapping) and data.get("dataset") is not None:
        return _under(given, {"train": _VIM["train"] | {"patience_drop": 0.0}, "preprocess": _VIM["preprocess"]})
    filled = _under(given, {"algorithm": dict(algorithm.for_tables)})
    if algorithm.intercept is not None:
        return filled
    filled["model"] = _model(given.get("model", {}))
    for section in ("parties", "data_owners"):
        if section in filled:
            filled[section] = _each(filled[section])
    return filled


def by_rows(rows: int, *, in_batches: bool) -> tuple[int, int]:
    """The size of a batch and the epochs at most, for so many training rows: enough steps on few rows, and not
    thousands of passes over many."""
    size = LEAST
    while size < MOST and size * BATCHES * 2 <= rows:
        size *= 2
    steps = -(-rows // size) if in_batches and rows else 1
    return size, max(FEWEST, min(LONGEST, STEPS // steps))


def sizes(rows: int, outputs: int) -> dict[str, Any]:
    """The hidden layer, the width and the ending of an mlp, for so many training rows and outputs of the joint model. A
    wide one learns few rows by heart, so its hidden layer has the root of the rows, as a power of two; what it sends is
    half of that. A head tells classes apart by directions in what it is sent, and gets two for each, however few the
    rows; where that is more, directions bend, and else the last layer is linear."""
    width = NARROW
    while width < USUAL and (4 * width) ** 2 <= rows:
        width *= 2
    bends = width < min(2 * outputs, WIDE)
    while width < min(2 * outputs, WIDE):
        width *= 2
    return {"hidden": [2 * width], "width": width, "ending": "same" if bends else "none"}


def sized(model: Any, found: Mapping[str, Any]) -> Any:
    """A model with sizes where it leaves them open; one that is only named, or none, as it is."""
    if not isinstance(model, Mapping):
        return model
    return {key: found.get(key, value) if value == "auto" else value for key, value in model.items()}


def _under(given: Mapping[str, Any], suggestion: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The given tables over the suggested ones, key by key; of a model of another name nothing is suggested."""
    merged = dict(given)
    for section, values in suggestion.items():
        own = given.get(section, {})
        if section == "model" and (own if isinstance(own, str) else own.get("name", values["name"])) != values["name"]:
            continue
        if isinstance(own, Mapping):
            merged[section] = {**values, **own}
    return merged


def _model(own: Any) -> Any:
    """An mlp as suggested, with what its owner says; another model as it is. Who gives layers gets these, each with its
    activation: how the last one ends was measured for layers as they are suggested."""
    if isinstance(own, str):
        return MODEL if own == "mlp" else own
    if not isinstance(own, Mapping) or own.get("name", "mlp") != "mlp":
        return own
    return {**MODEL, **({} if own.get("hidden", "auto") == "auto" else {"ending": "same"}), **own}


def _each(parties: Any) -> Any:
    """Owners who have a model of their own; a list, or tables by name."""
    if isinstance(parties, list):
        return [_with_model(one) for one in parties]
    if isinstance(parties, Mapping):
        return {name: _with_model(one) for name, one in parties.items()}
    return parties


def _with_model(party: Any) -> Any:
    if not isinstance(party, Mapping) or party.get("model") is None:
        return party
    return {**party, "model": _model(party["model"])}


def dropout_of(rows: str, chosen: float | None) -> float:
    """How often a partner is left out, as it was chosen or as it is usual for these rows."""
    if chosen is None:
        return PARTY_DROPOUT if rows == "label_owner" else 0.0
    if isinstance(chosen, bool) or not isinstance(chosen, (int, float)) or not 0 <= chosen < 1:
        raise ConfigError(f"[train] party_dropout must be a number from 0 up to, not including, 1; found {chosen!r}.")
    return float(chosen)


def check_differ(algorithm: str, config: object, rows: str, dropout: float, sampling: str) -> None:
    """That the algorithm can do without a partner's part of a row, where one may lack it or is left out, and that a
    partner can tell which of its rows are in a batch."""
    differ = rows == "label_owner"
    if differ or dropout:
        ALGORITHMS.check_can_lack(
            algorithm, config, '[data] rows = "label_owner"' if differ else "[train] party_dropout"
        )
    if differ and sampling != "epoch":
        raise ConfigError(
            f'[train] sampling = "{sampling}" draws each batch from all rows, and a partner that lacks some cannot '
            'tell which of its own are drawn. With rows = "label_owner" set sampling = "epoch".'
        )


def check_pretrains(name: str, algorithm: AnyAlgorithm) -> None:
    """That a party has one model that is trained step by step, from a start that may be another."""
    one = algorithm.nested is None and algorithm.local_model is not None
    if not one or algorithm.converges or algorithm.grows or algorithm.most_epochs is not None:
        raise ConfigError(
            f"[train] pretrain gives each party's model a start, and {name} has none that keeps it: "
            f"{'each label owner has its own copy of it' if algorithm.nested else 'it learns in its own way'}. "
            "Remove it."
        )
