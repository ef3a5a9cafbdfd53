"""Which algorithm? All of them on one small task: scores, bytes, seconds, what an audit
finds, and what noise leaves.

scikit-learn's breast cancer data, 569 women and thirty columns: ten at a clinic, which
also has the diagnoses, and ten at each of two laboratories. All get the same rows,
local models, batches and epochs, and are tuned equally little: four learning rates, of
which the validation rows of seed 0 choose one. Multi-VFL has the diagnoses at two
hospitals instead, and the clinic as a third laboratory. Scores of vFedCCE and of trees
come from the same exchange without encryption, which changes none, bytes and seconds
from an encrypted epoch. An algorithm is a cell. `python benchmarks/choose.py
RESULTS.json` prints the tables of the documentation from what `colonnade bench choose
--json` measured.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from colonnade.algorithms import ALGORITHMS, find
from colonnade.attacks.audit import audit_federation
from colonnade.benchmark import Cells, Result
from colonnade.core import Ledger
from colonnade.core.party import one_torch_thread
from colonnade.errors import Diverged
from colonnade.federation import Federation
from colonnade.planning.budgets import plan

REFERENCES = "references"
LABS = ("lab_north", "lab_south")
FACTORS = (1 / 3, 1.0, 3.0, 10.0)  # of the algorithm's own learning rate
CLIP = 1.0
SIGMA = 4.0
PLAIN = {"encryption": "none"}
LEVELS = {"codec": {"name": "quantize", "levels": 16}}


@dataclass(frozen=True)
class Choice:
    """One line of the tables."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    codecs: Mapping[str, Any] = field(default_factory=dict)  # of all three
    # settings for what is measured in an epoch of its own
    really: Mapping[str, Any] = field(default_factory=dict)
    audited: int | None = None  # epochs of the run that is audited, where not all
    noisy: bool = True

    @property
    def sends(self) -> str:
        """What laboratories release, which noise is put on."""
        return find(self.algorithm).from_columns[0]


CHOICES = {
    "splitnn": Choice("splitnn"),
    "splitnn, 64 hidden": Choice("splitnn", {"head_hidden": 64}),
    "vafl": Choice("vafl"),
    "fdml": Choice("fdml"),
    "vimsgd": Choice("vimsgd"),
    "vimadmm": Choice("vimadmm"),
    "vimadmm_joint": Choice("vimadmm_joint"),
    "vimadmm_joint, secure": Choice(
        "vimadmm_joint", {"aggregation": "secure"}, noisy=False
    ),
    "compressed_vfl, 16 levels": Choice("compressed_vfl", codecs={"embedding": LEVELS}),
    "vfedcce": Choice(
        "vfedcce", {"scheme": "plain"}, really={"scheme": "bfv"}, audited=1
    ),
    "boosted_trees": Choice(
        "boosted_trees", PLAIN, really={"encryption": "elgamal"}, noisy=False
    ),
    "boosted_trees, nodes hidden": Choice(
        "boosted_trees",
        PLAIN,
        really={"encryption": "elgamal", "nodes": "hidden"},
        noisy=False,
    ),
    "knn": Choice("knn", noisy=False),
    "multi_vfl": Choice("multi_vfl"),
}


def choices() -> dict[str, Choice]:
    """Those above, and every algorithm that is not among them as it is by default."""
    named = {choice.algorithm for choice in CHOICES.values()}
    return CHOICES | {name: Choice(name) for name in ALGORITHMS if name not in named}


def run(quick: bool) -> Cells:
    names = ("vimadmm", "knn", "multi_vfl") if quick else tuple(choices())
    return Cells([REFERENCES, *names], partial(_measured, quick=quick), _results)


def _measured(name: str, quick: bool) -> dict[str, Any]:
    """All lines of one choice, by table."""
    seeds, epochs = (1, 3) if quick else (5, 20)
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == REFERENCES:
            return {"scores": [one.to_json() for one in _references(seeds)]}
        choice = choices()[name]
        rate = dict[str, float]()
        if "learning_rate" in find(choice.algorithm).config.model_fields:
            rate = {
                "learning_rate": _rate(
                    choice, epochs, FACTORS[1:2] if quick else FACTORS
                )
            }
        found = {"scores": _scores(name, choice, rate, seeds, epochs)}
        if find(choice.algorithm).nested is None:
            found["leaks"] = _leaks(name, choice, rate, epochs)
        if choice.noisy and not quick:
            found["noise"] = _noise(name, choice, rate, min(seeds, 3), epochs)
    return {part: [one.to_json()] for part, one in found.items()}


def _results(found: Mapping[str, dict[str, Any]]) -> list[Result]:
    """Table by table."""
    return [
        Result(**line)
        for part in HEADINGS
        for cell in found.values()
        for line in cell.get(part, ())
    ]


def _references(seeds: int) -> Iterator[Result]:
    """Logistic regression on the same rows: the clinic's columns, and all of them in
    one place."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    for who in ("the clinic alone", "all columns in one place"):
        found = []
        for seed in range(seeds):
            held = federation(CHOICES["splitnn"], {}, seed, 1).holdings
            parts = [
                held.columns[name].features
                for name in (held.columns if who.startswith("all") else ("clinic",))
            ]
            x = torch.cat(parts, dim=1).numpy()
            labels = held.labelled.labels
            y = labels.numpy()
            train = held.splits["train"].numpy()
            test = held.splits["test"].numpy()
            model = LogisticRegression(max_iter=1000).fit(x[train], y[train])
            auc = roc_auc_score(y[test], model.predict_proba(x[test])[:, 1])
            found.append(
                {"accuracy": float(model.score(x[test], y[test])), "auc": float(auc)}
            )
        mean = {key: fmean(one[key] for one in found) for key in found[0]}
        yield Result(
            f"scores: {who}", _scored(mean), "logistic regression", numbers=mean
        )


def tables() -> dict[str, Any]:
    """Each party's columns of the same women."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.rename_axis("patient").reset_index()
    columns = list(frame.columns[1:-1])
    dealt = {
        name: columns[10 * n : 10 * n + 10] for n, name in enumerate(("clinic", *LABS))
    }
    found = {name: frame[["patient", *own]] for name, own in dealt.items()}
    return {**found, "clinic": frame[["patient", *dealt["clinic"], "target"]]}


def federation(
    choice: Choice,
    settings: Mapping[str, Any],
    seed: int,
    epochs: int,
    rules: Mapping[str, Any] | None = None,
    record: bool = False,
) -> Any:
    """Three parties of the task, with rules for what the laboratories send."""
    frames = tables()
    rules = {**choice.codecs, **(rules or {})}
    said: dict[str, Any] = {
        "algorithm": {"name": choice.algorithm, **choice.settings, **settings},
        "preset": "vim-mnist",  # the algorithms as their papers set them
        "model": {"name": "mlp", "hidden": [16], "width": 8},
        "train": {"epochs": epochs, "batch_size": 64, "early_stop": False},
        "federation": {"seed": seed, "device": "cpu", "noise": "seeded"},
    }
    if find(choice.algorithm).nested is not None:
        said["data_owners"] = [{"name": name, "outbox": rules} for name in LABS]
        labels = frames["clinic"][["patient", "target"]]
        owners = {"hospital_east": labels.iloc[::2], "hospital_west": labels.iloc[1::2]}
        columns = {**frames, "clinic": frames["clinic"].drop(columns="target")}
        return Federation.from_frames(
            columns, label_owners=owners, id="patient", label="target", settings=said
        )
    said["parties"] = {
        "clinic": {"outbox": choice.codecs},
        **{name: {"outbox": rules} for name in LABS},
    }
    return Federation.from_frames(
        frames, id="patient", label="target", settings=said, record=record
    )


def trained(made: Any) -> Any:
    for _ in made.train():
        pass
    return made


def _rate(choice: Choice, epochs: int, factors: tuple[float, ...]) -> float:
    """The learning rate with the least loss on validation rows."""
    usual = float(federation(choice, {}, 0, 1).settings.config.learning_rate)
    losses: dict[float, float] = {}
    for factor in factors:
        try:
            made = trained(
                federation(choice, {"learning_rate": usual * factor}, 0, epochs)
            )
            losses[usual * factor] = made.evaluate("validation")["loss"]
        except Diverged:
            continue
    return min(losses, key=losses.__getitem__)


def _scores(
    name: str, choice: Choice, rate: Mapping[str, Any], seeds: int, epochs: int
) -> Result:
    """Scores of new rows, and what all of it cost one laboratory."""
    found = []
    for seed in range(seeds):
        made = trained(federation(choice, rate, seed, epochs))
        found.append(made.evaluate("test"))
    numbers = {key: fmean(one[key] for one in found) for key in ("accuracy", "auc")}
    numbers |= _costs(choice, rate, epochs)
    cost = "{up:,.1f} kB up, {down:,.1f} kB down, {row:,.0f} bytes to predict a row".format(
        up=numbers["up"] / 1e3, down=numbers["down"] / 1e3, row=numbers["row"]
    )
    told = {**numbers, **rate}
    return Result(
        f"scores: {name}",
        _scored(numbers),
        f"{cost}, {numbers['seconds']:.1f} s of CPU",
        numbers=told,
    )


def _costs(choice: Choice, rate: Mapping[str, Any], epochs: int) -> dict[str, float]:
    """Bytes of one laboratory and seconds of all together, to train and then to predict
    the test rows. Where an epoch stands for all, keys are counted once."""
    times = epochs if choice.really else 1
    made = federation(choice, {**rate, **choice.really}, 0, epochs // times)
    start = time.process_time()
    book = trained(made).ledgers[LABS[0]]
    halfway = time.process_time()
    way = {direction: _bytes(book, direction, times) for direction in ("out", "in")}
    before = book.total("out") + book.total("in")
    made.evaluate("test")
    seconds = (halfway - start) * times + time.process_time() - halfway
    row = (book.total("out") + book.total("in") - before) / _rows(made)
    rounds = float(made.batches.done * times)
    keys = float(sum(one.bytes for one in book.entries if one.name == "public_key"))
    return {
        "rounds": rounds,
        "up": way["out"],
        "down": way["in"],
        "keys": keys,
        "row": row,
        "seconds": seconds,
    }


def _bytes(book: Ledger, direction: str, times: int) -> float:
    crossed = [one for one in book.entries if one.direction == direction]
    return float(
        sum(one.bytes * (1 if one.name == "public_key" else times) for one in crossed)
    )


def _rows(made: Any) -> int:
    return sum(len(one.splits["test"]) for one in made.holdings.label_owners.values())


def _leaks(name: str, choice: Choice, rate: Mapping[str, Any], epochs: int) -> Result:
    """What `colonnade audit` finds: labels told by a laboratory, columns rebuilt by the
    clinic."""
    rate = {**rate, **choice.really}
    epochs = choice.audited or epochs
    found = audit_federation(
        trained(federation(choice, rate, 0, epochs, record=True)), rows=32
    )
    numbers = dict[str, float]()
    said = list[str]()
    on_labels = [one for one in found.findings if one.limit == "label_inference"]
    if on_labels:
        best = max(on_labels, key=lambda one: one.details["accuracy"])
        share = best.details["accuracy"]
        without = best.details["accuracy_without"]
        numbers |= {"label_inference": share, "label_inference without": without}
        said.append(
            f"{share:.2f} of labels told by {best.attacker} (without attack"
            f" {without:.2f})"
        )
    on_columns = [one for one in found.findings if one.limit == "inversion_r2"]
    if on_columns:
        best = max(on_columns, key=lambda one: one.score or 0.0)
        r2 = best.score or 0.0
        numbers |= {"inversion_r2": r2, "inversion_r2 without": best.baseline}
        said.append(
            f"{r2:.2f} R² of the best column rebuilt by {best.attacker} (without attack"
            f" {best.baseline:.2f})"
        )
    return Result(
        f"leaks: {name}",
        "; ".join(said) or "no attack of the audit applies",
        numbers=numbers,
    )


def _noise(
    name: str, choice: Choice, rate: Mapping[str, Any], seeds: int, epochs: int
) -> Result:
    """Scores when the laboratories' training rows leave with noise, or noise leaves
    alone; test rows go as they are."""
    numbers: dict[str, float] = {}
    for what, kind in (("noise", "gaussian"), ("alone", "noise_only")):
        mechanism = {"name": kind, "clip": CLIP, "sigma": SIGMA}
        rules = {
            f"train.{choice.sends}": {
                **choice.codecs.get(choice.sends, {}),
                "mechanism": mechanism,
            }
        }
        found = []
        for seed in range(seeds):
            try:
                made = trained(federation(choice, rate, seed, epochs, rules))
                found.append(made.evaluate("test"))
            except Diverged:
                found.append({"auc": 0.5, "accuracy": 0.5})
        numbers |= {
            f"{what} {key}": fmean(one[key] for one in found)
            for key in ("accuracy", "auc")
        }
    numbers["epsilon"] = _epsilon(choice, epochs)
    told = f"AUC {numbers['noise auc']:.3f} with noise for ε = {numbers['epsilon']:.1f}"
    return Result(
        f"noise: {name}",
        told,
        f"with noise alone {numbers['alone auc']:.3f}",
        numbers=numbers,
    )


def _epsilon(choice: Choice, epochs: int) -> float:
    """Of a laboratory's training row, against the label owner, who knows the batches;
    one row replaced."""
    mechanism = {"name": "gaussian", "clip": CLIP, "sigma": SIGMA}
    made = federation(
        choice, choice.really, 0, epochs, {choice.sends: {"mechanism": mechanism}}
    )
    told = next(one for one in plan(made) if one.party == LABS[0])
    found = [
        one.epsilon
        for one in told.statements
        if one.relation == "replace-one" and "who knows" in one.adversary
    ]
    return float("inf") if found[0] is None else found[0]


def _scored(numbers: Mapping[str, float]) -> str:
    return f"accuracy {numbers['accuracy']:.3f}, AUC {numbers['auc']:.3f}"


def pages(results: Sequence[Mapping[str, Any]]) -> str:
    """The documentation's tables."""
    parts = {
        word: [one for one in results if one["what"].startswith(word)]
        for word in HEADINGS
    }
    return (
        "\n\n".join(
            "\n".join([*HEADINGS[word], *map(_line, parts[word])]) for word in HEADINGS
        )
        + "\n"
    )


HEADINGS = {
    "scores": (
        (
            "| | accuracy | AUC | rounds | kB up | kB down | bytes to predict a row |"
            " CPU, s |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ),
    "leaks": (
        (
            "| | labels told by a laboratory | without attack | best column rebuilt by"
            " the clinic, R² |"
        ),
        "|---|---|---|---|",
    ),
    "noise": (
        (
            "| | AUC with noise | accuracy | AUC with noise alone | accuracy | ε of a"
            " training row |"
        ),
        "|---|---|---|---|---|---|",
    ),
}
SHOWN = {
    "scores": (
        ("accuracy", "{:.3f}"),
        ("auc", "{:.3f}"),
        ("rounds", "{:.0f}"),
        ("up", "kB"),
        ("down", "kB"),
        ("row", "{:,.0f}"),
        ("seconds", "{:.1f}"),
    ),
    "leaks": (
        ("label_inference", "{:.2f}"),
        ("label_inference without", "{:.2f}"),
        ("inversion_r2", "{:.2f}"),
    ),
    "noise": (
        ("noise auc", "{:.3f}"),
        ("noise accuracy", "{:.3f}"),
        ("alone auc", "{:.3f}"),
        ("alone accuracy", "{:.3f}"),
        ("epsilon", "{:.1f}"),
    ),
}


def _line(result: Mapping[str, Any]) -> str:
    part, _, name = result["what"].partition(": ")
    word, comma, rest = name.partition(",")
    cells = [f"`{word}`{comma}{rest}" if name in choices() else name]
    for key, shape in SHOWN[part]:
        value = result["numbers"].get(key)
        cells.append(
            "–"
            if value is None
            else f"{value / 1e3:,.1f}"
            if shape == "kB"
            else shape.format(value)
        )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(pages(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
