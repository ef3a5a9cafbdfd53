"""A model card: what was trained by whom on how much, how good it is, what each party
sent, what is promised, what not.

It is written as numbers (model_card.json) and as a page (README.md). Where all parts of
a run are on one machine it is the same for every organisation; between sites it has
what the exporting site knows. It has nothing of anybody's columns, rules or tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from colonnade.evaluate import about_positive
from colonnade.export.pieces import COLUMNS, LABELS, LEAST, Piece, Trained
from colonnade.report.facts import read
from colonnade.report.words import listed
from colonnade.tracking import parameters_of
from colonnade.version import __version__

LIMITS = (
    (
        "These are pieces of one model. None of them predicts by itself: a label"
        " owner's piece takes what the pieces of all organisations with columns give,"
        " in the order that its config.json says."
    ),
    (
        "A piece gives what its model computes. The owner's rules (noise, rounding) are"
        " applied by Colonnade when something leaves, and are not in the piece."
    ),
    (
        "What an organisation computes with its piece and hands over is a release like"
        " those of the run. No ledger writes it down, and no budget counts it."
    ),
    (
        "The privacy statements are about what left during the run and since, until"
        " this card was made; not about the weights: a model remembers something of the"
        " rows it was trained on. Whoever publishes a piece publishes that."
    ),
    (
        f"Words that fewer than {LEAST} training rows have are not named in a piece, so"
        " that nobody's cell is read there: each counts as other, or as none of the"
        " words where there is no other. Numbers are not hidden so: medians, knots and"
        " edges of config.json are cells of training rows, the least and the largest"
        " of a column among them."
    ),
    (
        "Scores were measured on held-out rows of these organisations' tables; other"
        " people may be different."
    ),
)
NO_SCORES = (
    "Scores are measured where labels are, and this organisation has none of the"
    " labels: ask a label owner."
)
SETTINGS = ("algorithm.", "data.", "preprocess.", "model.", "label_model.", "train.")

PREPARED = """import json

import numpy as np
import pandas as pd
import torch

columns = json.load(open("columns/config.json"))["inputs"]["columns"]


def read(cells, how):  # text that means numbers, or times as days since 1970
    if pd.api.types.is_numeric_dtype(cells):
        return cells
    text = cells.astype(str).str.strip().mask(cells.isna())
    if "formats" in how:
        times = pd.Series(pd.NaT, index=cells.index, dtype="datetime64[ns, UTC]")
        for form in how["formats"] or ["ISO8601"]:
            found = pd.to_datetime(text, format=form, errors="coerce", utc=True)
            if "%y" in form:  # a year of two digits
                later = found.dt.year > how["last_two_digit_year"]
                found = found.mask(later, found - pd.DateOffset(years=100))
            times = times.fillna(found)
        return (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    found = text.str.extract("^(?:" + how["pattern"] + ")$")
    python = str.maketrans(how["decimal"], ".", how["thousands"])
    return pd.to_numeric(found["sign"] + found["number"].str.translate(python))


def prepared(table):
    parts = []
    for column in columns:
        cells = table[column["name"]]
        cells = read(cells, column["read"]) if "read" in column else cells
        if column["kind"] != "category":
            values = cells.to_numpy(dtype=float, na_value=np.nan)
            gaps = np.isnan(values)
            values = np.where(gaps, column["median"], values)
            if column["kind"] == "number":
                parts.append((values - column["centre"]) / column["divisor"])
            elif column["kind"] == "quantile":
                parts.append(np.interp(values, column["knots"], column["scores"]))
            else:
                edges = np.array(column["edges"])
                parts += list(np.clip((values[:, None] - edges[:-1]) / np.diff(edges), 0, 1).T)
            parts += [gaps] if column["had_gaps"] else []
        else:
            words = cells.astype(object).map(str).where(cells.notna(), "missing")
            parts += [words == word for word in column["frequent"]]
            parts += [~words.isin(column["frequent"])] if column["other"] else []
    return torch.tensor(np.stack(parts, axis=1), dtype=torch.float32)


model = torch.export.load("columns/model.pt2").module()
sent = model(prepared(pd.read_csv("rows.csv")))"""
PICTURES = """import torch

model = torch.export.load("columns/model.pt2").module()
sent = model(rows)  # a tensor [rows, ...] as config.json says"""
OUTPUTS = """import json

import torch

config = json.load(open("labels/config.json"))
head = torch.export.load("labels/model.pt2").module()
outputs = head([received[name] for name in config["inputs"]["parties"]])  # {name: tensor}
"""
SCORES = {
    "softmax": (
        "scores = outputs.softmax(-1)  # a column per class of"
        " config['outputs']['classes']"
    ),
    "sigmoid": """second = outputs[:, 0].sigmoid()  # of the second of config['outputs']['classes']
is_second = config["outputs"]["positive"] == config["outputs"]["classes"][1]
scores = second if is_second else 1 - second  # of the positive class""",
    "value": (
        "values = outputs[:, 0] * config['outputs']['scale'] +"
        " config['outputs']['mean']"
    ),
    "exponential": (
        "values = (outputs[:, 0] * config['outputs']['scale'] +"
        " config['outputs']['mean']).exp()"
    ),
}


def numbers(trained: Trained) -> dict[str, Any]:
    """The card as plain values."""
    summary = trained.summary
    facts = read(trained.run.path)
    settings = parameters_of(trained.settings.to_mapping())
    kept = (
        "algorithm",
        "task",
        "findings",
        "parties",
        "rows",
        "epochs",
        "rounds",
        "seconds",
        "stopped",
        "metrics",
        "positive",
        "not_measured",
    )
    crossed = ("from", "to", "name", "protection", "codec", "meaning", "times", "bytes")
    return {
        "name": trained.run.path.resolve().name,
        "part": trained.part,
        **(
            {"task": trained.labels.task}
            if any("labels" in fitted for fitted in trained.fitted.values())
            else {}
        ),
        **{key: summary[key] for key in kept if key in summary},
        "bytes": summary["bytes"],
        "crossed": [{key: flow.get(key) for key in crossed} for flow in facts.flows],
        "crossed_since": [
            {key: flow.get(key) for key in crossed} for flow in facts.later
        ],
        "privacy": facts.privacy,
        "settings": {
            key: value for key, value in settings.items() if key.startswith(SETTINGS)
        },
        "limits": list(LIMITS),
        "made_with": {"colonnade": __version__, "torch": str(torch.__version__)},
    }


def page(card: dict[str, Any], pieces: Sequence[Piece]) -> str:
    """README.md of one organisation's folder."""
    scores = [
        _scores(card["metrics"]) if card.get("metrics") else NO_SCORES,
        *([positive] if (positive := about_positive(card)) else []),
        *(
            f"The {split} rows were not measured: {why}."
            for split, why in card.get("not_measured", {}).items()
        ),
    ]
    parts = [
        _front(card),
        f"# {card['name']}: the part of {pieces[0].party}",
        *(f"**{finding}**" for finding in card.get("findings", [])),
        _about(card),
        "## What is here\n\n"
        + "\n".join(f"- `{piece.role}/`: {_words(piece)}" for piece in pieces),
        *(f"```python\n{_use(piece)}\n```" for piece in pieces),
        (
            "`model.safetensors` has the same weights for whoever builds the model in"
            " another way."
        ),
        "## How good it is",
        *scores,
        "## Who took part",
        _table(
            ("organisation", "holds", "sent, bytes", "received, bytes"),
            (
                (
                    name,
                    " and ".join(roles) or "no data",
                    card["bytes"][name]["out"],
                    card["bytes"][name]["in"],
                )
                for name, roles in card["parties"].items()
            ),
        ),
        "Rows: "
        + ", ".join(f"{count:,} {split}" for split, count in card["rows"].items())
        + ".",
        "## What each party sent",
        _crossed(card["crossed"]),
        *(
            ["Since the run, to predict, to serve or to explain:", _crossed(since)]
            if (since := card["crossed_since"])
            else []
        ),
        "## What was promised",
        _table(
            ("whose", "against", "neighbours", "accountant", "epsilon", "delta"),
            _promises(card),
        ),
        (
            "Statements about columns and about labels are never added up; each holds"
            " against the adversary it names. Of columns, an epsilon is for a row's own"
            " releases, except where its line says: also through the local model."
        ),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in card["limits"]),
        "## Settings",
        _table(("setting", "value"), card["settings"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def _about(card: dict[str, Any]) -> str:
    trained = (
        f"trained with `{card['algorithm']}` over columns that stayed with their owners"
    )
    if card["part"] is None:
        count = len(card["parties"])
        return (
            f"One model of {count} organisations, {trained}. This folder has what one"
            " of them holds of it."
        )
    met = dict.fromkeys(
        name for flow in card["crossed"] for name in (flow["from"], flow["to"])
    )
    others = [name for name in met if name != card["part"]]
    return (
        f"One model of several organisations at sites of their own, {trained}. This is"
        f" one organisation's part: it was exported at the site of {card['part']}, from"
        f" what is there, and the pieces of {listed(others)} are at theirs. Numbers"
        " below are those that this site knows."
    )


def _front(card: dict[str, Any]) -> str:
    """The front matter: YAML, whose values are JSON."""
    # a site without labels does not know it
    kind = f"tabular-{card['task']}" if "task" in card else None
    scored = [
        {"type": name, "value": value, "name": f"{name} on {split} rows"}
        for split, scores in card.get("metrics", {}).items()
        if split != "train"
        for name, value in scores.items()
        if value is not None
    ]
    data = {"name": "tables of the organisations", "type": "private"}
    index = [
        {
            "name": card["name"],
            "results": [{"task": {"type": kind}, "dataset": data, "metrics": scored}],
        }
    ]
    lines = {
        "library_name": "pytorch",
        "pipeline_tag": kind,
        "tags": ["vertical-federated-learning", "colonnade", card["algorithm"]],
        "model-index": None if kind is None else index,
    }
    return (
        "---\n"
        + "".join(
            f"{key}: {json.dumps(value)}\n" for key, value in lines.items() if value
        )
        + "---"
    )


def _words(piece: Piece) -> str:
    shape = _shape(piece.outputs["shape"])
    if piece.role == COLUMNS:
        return (
            "from its own columns, prepared as config.json says, to"
            f" `{piece.outputs['name']}`, {shape} a row"
        )
    return (
        f"from what {listed(piece.inputs['parties'])} send, in this order, to {shape}"
        " a row"
    )


def _use(piece: Piece) -> str:
    if piece.role == LABELS:
        return OUTPUTS + SCORES[piece.outputs["scores"]]
    return PICTURES if piece.inputs["columns"] is None else PREPARED


def _shape(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape))} number{'' if list(shape) == [1] else 's'}"


def _scores(metrics: dict[str, Any]) -> str:
    names = list(next(iter(metrics.values())))
    rows = (
        (
            split,
            *(
                "-" if scores.get(name) is None else f"{scores[name]:.4f}"
                for name in names
            ),
        )
        for split, scores in metrics.items()
    )
    return _table(("rows", *names), rows)


def _crossed(flows: Iterable[dict[str, Any]]) -> str:
    return _table(
        ("from", "to", "what", "protection", "times", "bytes", "it tells"),
        (
            [
                flow[key]
                for key in (
                    "from",
                    "to",
                    "name",
                    "protection",
                    "times",
                    "bytes",
                    "meaning",
                )
            ]
            for flow in flows
        ),
    )


def _promises(card: dict[str, Any]) -> Iterable[Sequence[Any]]:
    for guarantee in card["privacy"]:
        for statement in guarantee["statements"]:
            epsilon = (
                "no guarantee"
                if statement["epsilon"] is None
                else f"{statement['epsilon']:.4g}"
            )
            delta = f"{statement['delta']:g}" if statement["delta"] else "-"
            whose = f"{guarantee['party']}: {guarantee['protects']}"
            yield (
                whose,
                statement["adversary"],
                statement["relation"],
                statement["accountant"],
                epsilon,
                delta,
            )


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; a | in a word is escaped, so that it ends no cell."""
    lines = [
        " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row)
        for row in rows
    ]
    head = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*head, *(f"| {line} |" for line in lines)])
