"""What a plan warns of: what is not protected, what is wasted, and what will not last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from colonnade.algorithms import Kind
from colonnade.federation import Federation
from colonnade.planning.budgets import End, told
from colonnade.privacy.report import Guarantee


def concerns(federation: Federation, privacy: Sequence[Guarantee], ends: Sequence[End]) -> Iterator[str]:
    """One sentence or two each, with the cure."""
    yield from _unprotected(federation, privacy)
    yield from _covered_in_part(federation)
    yield from (told(end, federation.algorithm.passes(federation.settings.train.epochs)) for end in ends)
    yield from _few_rows(federation)
    yield from _wide(federation)
    yield from _summed(federation)
    if federation.settings.data.align == "private":
        yield (
            "The common rows are found by private set intersection first. Its bytes are in these, its time is not: "
            "`colonnade align` tells."
        )
        if federation.settings.alignment.helper:
            yield (
                f"The helper '{federation.settings.alignment.helper}' may compare ids: it learns how many each party "
                "has and which blinded ids are equal, and could test ids if it colludes with a party."
            )


def _unprotected(federation: Federation, privacy: Sequence[Guarantee]) -> Iterator[str]:
    bare = {what: [g.party for g in privacy if g.protects == what and _bare(g)] for what in ("columns", "labels")}
    labelled = [g.party for g in privacy if g.protects == "labels"]
    columns = [name for name in bare["columns"] if name not in labelled]
    if columns:
        what = ", ".join(dict.fromkeys(one.release for g in privacy if g.party in columns for one in g.releases))
        rule = '{ mechanism = { name = "gaussian", clip = 1.0, sigma = "auto" } } and a budget.'
        cures = [f"Its owner can set outbox.{name} = {rule}" for name in federation.algorithm.from_columns[:1]]
        cures = cures or ["No rule can: this algorithm releases nothing of columns with a line for each row."]
        yield (
            f"epsilon is infinite for the columns of {_names(columns)}: no rule adds noise to what leaves ({what}). "
            f"{cures[0]}"
        )
    own = [name for name in bare["columns"] if name in labelled]
    _, driven = federation.algorithm.crosses(federation.settings.config)
    if own:
        why = "what a label owner sends follows them" if driven else "they are added in without noise"
        yield f"epsilon is infinite for the columns of {_names(own)}: {why}."
    if bare["labels"] and driven:
        yield (
            f"epsilon is infinite for the labels of {_names(bare['labels'])}: what is sent follows them. Randomized "
            "response on labels bounds that, where they are classes."
        )
    if federation.settings.engine.noise == "seeded":
        yield 'noise = "seeded" protects nobody: whoever knows the seed can subtract it. Remove it for real data.'


def _covered_in_part(federation: Federation) -> Iterator[str]:
    """Noise with a budget reads as if it were for all rows."""
    if federation.accounts and federation.algorithm.covers:
        yield f"The noise of {_names(list(federation.accounts))} {federation.algorithm.covers}."


def _bare(guarantee: Guarantee) -> bool:
    return all(one.epsilon is None for one in guarantee.statements)


def _few_rows(federation: Federation) -> Iterator[str]:
    train, splits = federation.settings.train, federation.batches.splits
    rows = len(splits.get("train", ()))
    if train.batch_size > rows and federation.algorithm.in_batches:
        yield (
            f"[train] batch_size is {train.batch_size:,} and there are {rows:,} training rows, so an epoch is one "
            f"step. A smaller one, such as {max(rows // 8, 1)}, learns more per epoch."
        )
    for split in ("validation", "test"):
        if split not in splits:
            what = "the run cannot stop early" if split == "validation" else "nobody will know how good the model is"
            yield f"[data] {split} is 0, so {what} on rows it has not seen."
        elif len(splits[split]) < 30:
            yield f"There are {len(splits[split])} {split} rows, on which a score says little."


def _wide(federation: Federation) -> Iterator[str]:
    """An embedding wider than the columns costs more than it can tell, and hides nothing of them."""
    if not federation.algorithm.named(Kind.EMBEDDING):
        return
    columns = {name: int(federation.owners[name].features[0].numel()) for name in federation.widths}
    found = [
        f"'{name}' {width} for {columns[name]}" for name, width in federation.widths.items() if width > columns[name]
    ]
    if found:
        yield (
            f"Some send more numbers a row than they have columns: {_few(found)}. A smaller [model] "
            "width sends less and shows less."
        )


def _summed(federation: Federation) -> Iterator[str]:
    """With few parties, whoever knows one share of a sum knows much of the rest."""
    others = [name for name in federation.owners if name not in federation.label_owners]
    if not federation.algorithm.separable(federation.settings.config) and len(others) == 2:
        first, second = others
        yield (
            f"Secure aggregation adds up two parties alone: should '{first}' or '{second}' tell the label owner what "
            "it sent, the other's follows. Of three parties two would have to."
        )


def _names(names: Sequence[str]) -> str:
    return _few([f"'{name}'" for name in names])


def _few(words: Sequence[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
