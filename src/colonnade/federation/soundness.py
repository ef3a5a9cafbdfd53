"""Whether something went wrong that a score alone does not show: a model that learned
nothing, a party that says nothing. It is said in the summary, by `colonnade run`, and
as a warning in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade.core import roles
from colonnade.datasets.preprocess import Labels
from colonnade.optim.losses import CrossEntropy, Loss, Squared

RANKS = 0.7
"""The AUC from which on a model whose loss is bad has learned to rank."""
FEW = 5
"""A class with fewer rows cannot be learned and measured."""
ROWS = 1000
"""So many training rows show whether an output of a model is the same in all."""
SAME = 1e-6
"""Outputs that differ by less than this share of their size are taken for one."""

NOISY = (
    "Noise hides what the columns tell, and a budget makes more of it for every epoch:"
    ' train fewer epochs, as --set train.epochs=3, take the algorithm "one_shot", which'
    " sends each row once, or raise the budget."
)
"""What to do about a model that learned nothing under noise."""


class Finding(UserWarning):
    """A sentence on a run that must not be taken for a result."""


def constant_loss(
    loss: Loss,
    known: Tensor,
    labels: Tensor,
    known_count: Tensor | None = None,
    count: Tensor | None = None,
) -> float:
    """Give the loss on these labels of the best that can be said without any column:
    the mean of those known, or the share of each class among them, with rows as they
    count."""
    weights = loss.weigh(known, known_count)
    if isinstance(loss, Squared):
        mean = (
            known.float().mean()
            if weights is None
            else (known * weights).sum() / weights.sum()
        )
        outputs = mean.float().expand(len(labels), 1)
    else:
        classes = max(loss.outputs, 2)
        share = (
            torch.bincount(known.long(), weights=weights, minlength=classes)
            .double()
            .clamp_min(0.5)
        )
        logits = (share / share.sum()).log().float()
        outputs = (
            logits if isinstance(loss, CrossEntropy) else (logits[1:] - logits[:1])
        )
        outputs = outputs.expand(len(labels), loss.outputs)
    return float(loss(outputs, labels, count))


def learned_nothing(
    loss: Loss,
    name: str,
    labels: Tensor,
    splits: Mapping[str, Tensor],
    metrics: Mapping[str, Mapping[str, Any]],
    counts: Callable[[Tensor], Tensor | None] = lambda rows: None,  # noqa: ARG005
    *,
    is_noisy: bool = False,
) -> str:
    """A sentence where a model says no more about rows that it was not trained on than
    the mean, or the shares of the classes, would; else nothing. Where both kinds of
    such rows were measured, both must say so. One that still ranks rows well has
    learned something, and only its probabilities are off: that is said instead. `name`
    is how this loss is called among the metrics, and `counts` how much rows count.
    Where the run `is_noisy`, some party adds noise to what it releases."""
    compared = []
    for split in ("validation", "test"):
        measured = metrics.get(split, {}).get(name)
        if split in splits and "train" in splits and measured is not None:
            rows = [splits[side].to(labels.device) for side in ("train", split)]
            constant = constant_loss(
                loss, *(labels[side] for side in rows), *map(counts, rows)
            )
            compared.append((split, float(measured), constant))
    if not compared or any(measured < constant for _, measured, constant in compared):
        return ""
    split, measured, constant = compared[-1]
    auc = metrics[split].get("auc")
    if auc is not None and auc >= RANKS:
        return (
            f"The model ranks {split} rows (AUC {auc:.4f}), but its probabilities are"
            f" wrong: its loss there is {measured:.4f}, and saying the shares of the"
            f" classes of every row has {constant:.4f}. Rank with it, and do not read"
            " its scores as chances. Less noise, fewer epochs or a lower learning_rate"
            " help."
        )
    what = (
        "the mean of the training rows"
        if isinstance(loss, Squared)
        else "the shares of the classes"
    )
    cure = (
        NOISY
        if is_noisy
        else (
            "Lower learning_rate, train more rows or epochs, or look for columns that"
            " tell more."
        )
    )
    return (
        f"The model learned nothing that holds for other rows: its loss on {split} rows"
        f" is {measured:.4f}, and saying {what} of every row has {constant:.4f}. Do not"
        f" use it. {cure}"
    )


def rare_classes(encoder: Labels, owners: Mapping[str, roles.LabelOwner]) -> list[str]:
    """Write a sentence where classes have so few rows that they may be slips of the
    pen: fewer than `FEW`, and fewer than a quarter of what they would have if all
    classes had the same. It is for who may know the owners' labels."""
    if encoder.task != "classification":
        return []
    classes = encoder.classes
    labels = torch.cat([owner.labels for owner in owners.values()])
    counts = torch.bincount(labels.long().cpu(), minlength=len(classes)).tolist()
    most = min(FEW, len(labels) / len(classes) / 4)
    rare = [
        f"{name!r} ({count})"
        for name, count in zip(classes, counts, strict=True)
        if 0 < count < most
    ]
    if not rare:
        return []
    named = ", ".join(rare[:5]) + (
        f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    )
    whose = " and ".join(map(repr, owners))
    what = "a class" if len(rare) == 1 else "classes"
    return [
        f"{whose} has fewer than {FEW} of its {len(labels):,} rows in {what} of the"
        f" label: {named}. That is too few to learn or to measure, and each counts as"
        f" one of the {len(classes)} classes. Correct the label where it is a slip of"
        " the pen; else give more such rows, or leave them out."
    ]


def silent(owners: Mapping[str, roles.FeatureOwner]) -> dict[str, list[int]]:
    """By party with a model, count how many of its numbers a row are the same in all
    its training rows, and how many it has, where any are the same. One whose numbers
    all are tells nothing, whatever its columns are worth."""
    constant: dict[str, list[int]] = {}
    for name, owner in owners.items():
        rows = owner.organisation.batches.splits.get("train")
        if rows is not None and len(rows) > 1 and owner.optimizer is not None:
            same, width = _constant(owner, rows[:ROWS])
            constant |= {name: [same, width]} if same else {}
    return constant


def _constant(owner: roles.FeatureOwner, rows: Tensor) -> tuple[int, int]:
    """Count how many of the numbers that its model gives for a row are the same in all
    of these rows, and how many it gives: of a dead ReLU all are 0, and say nothing."""
    owner.model.eval()
    with torch.no_grad():
        outputs = owner.model(
            owner.features.index_select(0, rows.to(owner.device))
        ).flatten(1)
    spread = outputs.amax(0) - outputs.amin(0)
    return (
        int((spread <= SAME * outputs.abs().amax(0).clamp_min(SAME)).sum()),
        spread.numel(),
    )


def say_nothing(constant: Mapping[str, list[int]]) -> list[str]:
    """Write a sentence for each party that says nothing at all."""
    return [
        f"'{name}' says nothing: the {width} numbers that its model gives are the same"
        " for every row, so what its columns are worth is not known. Its units died;"
        ' use activation = "tanh" under [model], or a wider one.'
        for name, (same, width) in constant.items()
        if same == width
    ]
