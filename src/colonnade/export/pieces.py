"""The pieces of a trained model, rebuilt from a run directory: no table is read where
columns.json says their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from colonnade import models
from colonnade.algorithms import find
from colonnade.algorithms.algorithm import HeadInputs, TableInputs
from colonnade.core import files
from colonnade.datasets.fitted import Category
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.readings import described
from colonnade.errors import CheckpointError, ConfigError
from colonnade.federation import Federation
from colonnade.rows.holdings import loss_for
from colonnade.runs.layout import WIDTHS
from colonnade.runs.run_directory import RunDirectory, plain

COLUMNS = "columns"
LABELS = "labels"
LEAST = 10
"""The fewest training rows that must have a word for a piece to name it."""


@dataclass(frozen=True)
class Piece:
    """One model of one organisation, on the CPU and in evaluation mode. `shapes` has
    the shape of one row of each input; `inputs` and `outputs` describe what goes in and
    what comes out."""

    party: str
    role: str
    model: nn.Module
    shapes: tuple[tuple[int, ...], ...]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)


class Trained:
    """What a run directory holds, as models; `allow_models` lists the import paths that
    its settings may name."""

    def __init__(self, folder: Path, allow_models: Sequence[str] = ()) -> None:
        self.run = RunDirectory(folder)
        self.settings, self.mark, summary = (
            self.run.settings(allow_models),
            self.run.mark(),
            self.run.summary(),
        )
        self.algorithm = find(self.settings.algorithm)
        if self.algorithm.head is None:
            raise ConfigError(
                f"A run of {self.settings.algorithm!r} has no model to export:"
                f" {self.algorithm.no_head}. Predict with `colonnade predict`, or train"
                " another algorithm."
            )
        if (
            not isinstance(summary, dict)
            or "parties" not in summary
            or not self.mark["finished"]
        ):
            raise ConfigError(
                f"{folder} holds a run that has not finished. Finish it: colonnade run"
                " ... --resume."
            )
        self.summary: dict[str, Any] = summary
        self.part = self.run.part()
        self.parties = {name: set(roles) for name, roles in summary["parties"].items()}
        self.fitted = {name: self.run.fitted(name) for name in self.parties}
        self._models: dict[str, nn.Module] = {}

    def pieces(self, party: str) -> list[Piece]:
        """All pieces that one organisation holds."""
        makers = {"features": self._columns, "labels": self._labels}
        return [
            make(party) for role, make in makers.items() if role in self.parties[party]
        ]

    @cached_property
    def labels(self) -> Labels:
        return next(
            Labels.from_state(fitted["labels"])
            for fitted in self.fitted.values()
            if "labels" in fitted
        )

    @property
    def outputs(self) -> int:
        """How many outputs the joint model has. Between sites a party without labels
        knows it from the driver."""
        if self.part is None or "labels" in self.parties[self.part]:
            return loss_for(self.labels).outputs
        return int(self.summary.get("outputs") or 1)

    def state(self, party: str) -> dict[str, Any]:
        return files.read_state(self.run._checkpoint(party, self.mark))

    def shape(self, party: str) -> tuple[int, ...]:
        """The shape of one row of a party's prepared columns."""
        if "columns" in self.fitted[party]:
            return (len(Preprocessor.from_state(self.fitted[party]["columns"]).names),)
        # a named data set has no columns of its own to prepare
        features = self._as_trained.owners[party].features
        return tuple(features.shape[1:])

    @cached_property
    def _as_trained(self) -> Any:
        return Federation.from_settings(self.settings)

    def spec(self, party: str) -> dict[str, Any]:
        own = self.settings.parties.get(party)
        spec = (own.model if own is not None else None) or self.settings.model or "mlp"
        return {"name": spec} if isinstance(spec, str) else dict(spec)

    def local_model(self, party: str) -> nn.Module:
        """f_k, with a head where the algorithm gives parties one."""
        if party not in self._models and self.algorithm.tables is not None:
            inputs = TableInputs(self.state(party)["features"], self.fitted[party])
            self._models[party] = self.algorithm.tables.model(inputs).eval()
        if party not in self._models:
            shape = self.shape(party)
            model = models.build(
                self.spec(party),
                shape,
                seed=0,
                owner=party,
                allow=self.settings.allow_models,
            )
            row = torch.zeros(1, *shape)
            own = "labels" in self.parties[party]
            model = self.algorithm.complete(
                model, row, self.outputs, seed=0, config=self.settings.config, own=own
            )
            try:
                model.load_state_dict(self.state(party)["features"]["model"])
            except (RuntimeError, KeyError) as error:
                raise self.run.unfit(party, error) from None
            self._models[party] = model.eval()
        return self._models[party]

    @cached_property
    def sent(self) -> dict[str, tuple[int, ...]]:
        """The shape of what each party with columns sends for a row, in the label
        owners' order."""
        tables = self.algorithm.tables
        holder = next(
            (name for name, roles in self.parties.items() if "labels" in roles), None
        )
        if tables is not None and holder is not None:
            names = self.run.widths() if self.part is not None else self.parties
            with_columns = [
                name
                for name in names
                if self.part is not None or "features" in self.parties[name]
            ]
            return dict(tables.shapes(self.state(holder)["labels"], with_columns))
        if self.part is not None and "labels" in self.parties[self.part]:
            if widths := self.run.widths():
                return widths
            raise CheckpointError(
                f"{self.run.path} is the part of '{self.part}' in a run between sites,"
                f" and {WIDTHS} is missing there: what the others send is not known."
                " Runs of earlier versions have none; resume the run to write it."
            )
        return {
            name: self._sent_by(name)
            for name, roles in self.parties.items()
            if "features" in roles
        }

    def _sent_by(self, party: str) -> tuple[int, ...]:
        """The shape of what one party sends for a row, by its own model."""
        with torch.no_grad():
            return tuple(
                self.local_model(party)(torch.zeros(1, *self.shape(party))).shape[1:]
            )

    def _columns(self, party: str) -> Piece:
        shape = self.shape(party)
        own = self.settings.parties.get(party)
        columns = self._columns_described(party)
        released = self.algorithm.from_columns[0]
        inputs = {"shape": list(shape), "dtype": "float32", "columns": columns}
        outputs = {
            "name": released,
            "shape": list(self._sent_by(party)),
            "rules": {} if own is None else plain(own.outbox),
            "reveals": self.algorithm.reveals[released],
        }
        return Piece(
            party,
            COLUMNS,
            self.local_model(party),
            (shape,),
            inputs,
            outputs,
            self.spec(party),
        )

    def _columns_described(self, party: str) -> list[dict[str, Any]] | None:
        """How columns become numbers, and text is read, for who gets the piece: without
        words that few rows have."""
        state = self.fitted[party].get("columns")
        if state is None:
            return None
        prepared = Preprocessor.from_state(state)
        columns = []
        for fitted in prepared.columns:
            column = (
                fitted.without_few(LEAST)
                if isinstance(fitted, Category)
                else fitted.state()
            )
            reading = prepared.readings.get(column["name"])
            columns.append(
                column if reading is None else column | {"read": described(reading)}
            )
        return columns

    def _labels(self, party: str) -> Piece:
        loss = loss_for(self.labels)
        encoder = self.labels
        state = self.state(party)["labels"]
        settings = self.settings
        spec = settings.label_model or "mlp"
        allow = settings.allow_models

        def build(shape: tuple[int, ...]) -> nn.Module:
            return models.build_head(
                spec, shape, loss.outputs, seed=0, owner=party, allow=allow
            )

        inputs = HeadInputs(
            state,
            settings.config,
            self.sent,
            loss.outputs,
            build,
            encoder.unit.mean,
            encoder.unit.scale,
        )
        assert self.algorithm.head is not None
        model = self.algorithm.head(inputs).eval()
        if encoder.task == "regression":
            scores = "exponential" if encoder.unit.is_log else "value"
        else:
            scores = "sigmoid" if loss.outputs == 1 else "softmax"
        about: dict[str, Any] = {
            "shape": [loss.outputs],
            "task": encoder.task,
            "scores": scores,
        }
        if encoder.task == "regression":
            about |= {"mean": encoder.unit.mean, "scale": encoder.unit.scale}
        else:
            about["classes"] = list(encoder.classes)
            if encoder.positive_class is not None:
                about["positive"] = encoder.positive_class
        shapes = tuple(self.sent.values())
        described_inputs = {
            "parties": list(self.sent),
            "shapes": [list(shape) for shape in shapes],
            "dtype": "float32",
        }
        return Piece(
            party,
            LABELS,
            model,
            shapes,
            described_inputs,
            about,
            dict(self.settings.label_model),
        )
