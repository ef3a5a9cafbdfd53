"""An organisation, built from its own settings and what it holds: the same in one
process and at a site of its own."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.algorithms import ALGORITHMS, find
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import (
    Agreed,
    Batches,
    DpEvent,
    Mechanism,
    Organisation,
    Plain,
    Rows,
    roles,
)
from colonnade.core.batches import seed_for
from colonnade.core.by_id import numbers_of
from colonnade.core.chance import Secret
from colonnade.datasets.preprocess import Labels, spellings
from colonnade.datasets.table import Table
from colonnade.errors import ConfigError, DataError, did_you_mean
from colonnade.federation.rules import rules_from
from colonnade.models.encoders import pretrain
from colonnade.optim import estimators
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, balanced
from colonnade.privacy import Account, TwoStage
from colonnade.privacy.used_rows import UsedRows
from colonnade.rows.holdings import Holdings, LabelledRows, read_labels, read_tables
from colonnade.rows.making import from_tables
from colonnade.rows.public import from_dataset
from colonnade.runs.run_directory import Trained
from colonnade.settings.federation_file import Settings
from colonnade.settings.schema import place_of
from colonnade.settings.sections import LABELS, LabelOwnerSettings, PartySettings
from colonnade.settings.selection import SERVER

PRIOR_ROWS = 10_000
"""So many drawn labels are enough to learn what to expect of a row."""
ROWS = 4
"""So many rows beside one that is changed show whether a model mixes them."""


def local_epochs(settings: Settings) -> int:
    """How often each epoch of a run goes through a label owner's rows."""
    return (
        1
        if find(settings.algorithm).nested is None
        else int(settings.config.local_epochs)
    )


def epochs_of(settings: Settings) -> int:
    """How often a whole run goes through a label owner's rows."""
    return find(settings.algorithm).passes(settings.train.epochs) * local_epochs(
        settings
    )


def training_rows(holdings: Holdings) -> int:
    """The number of training rows of the label owner that has most."""
    here = max(
        (len(held.splits.get("train", ())) for held in holdings.label_owners.values()),
        default=0,
    )
    return holdings.trained or here


def agreed_on(settings: Settings, holdings: Holdings, party: str = "") -> Agreed:
    """Build the batches of every label owner, which follow from the agreed settings and
    its rows; for a `party` that lacks some of these, what it has of them."""
    algorithm = find(settings.algorithm)
    train = settings.train
    epochs = epochs_of(settings)
    seed = settings.engine.seed

    def batches(splits: Mapping[str, Tensor], of: LabelledRows, owner: str) -> Batches:
        rows = holdings.trained or len(of.splits.get("train", ()))
        size = algorithm.batch_size(train.batch_size, rows)
        how: dict[str, Any] = {
            "reshuffle": train.reshuffle,
            "sampling": train.sampling,
            "owner": owner,
        }
        if settings.rows_differ:
            numbers = (
                numbers_of(of.ids.tolist(), seed) if of.numbers is None else of.numbers
            )
            how |= {"numbers": numbers, "parts": -(-rows // size)}
        return Batches(splits, batch_size=size, epochs=epochs, seed=seed, **how)

    return holdings.agreed(batches, party if settings.rows_differ else "")


def organise(
    name: str,
    settings: Settings,
    holdings: Holdings,
    agreed: Agreed,
    device: torch.device,
) -> Organisation:
    """Build one organisation: its outbox with its owner's rules, where its noise comes
    from, its account, and the roles it plays. Its ledger begins with what crossed while
    rows were agreed on."""
    organisation = _with_outbox(name, settings, holdings, agreed, device)
    organisation.fitted = holdings.state_of(name)
    organisation.ledger.carry(holdings.aligned.get(name, ()))
    if name in holdings.columns:
        organisation.roles["features"] = _feature_owner(
            organisation, settings, holdings
        )
    if name in holdings.label_owners:
        organisation.roles["labels"] = _label_owner(
            organisation, settings, holdings, agreed
        )
    if name == SERVER:
        nested = find(settings.algorithm).nested
        assert nested is not None
        organisation.roles["server"] = nested.aggregation_server(
            organisation, settings.config, settings.train.epochs
        )
    return organisation


def accounts_of(organisations: Mapping[str, Organisation]) -> dict[str, Account]:
    """Give the accounts of those whose rules promise something for their columns."""
    meters = {
        name: organisation.outbox.meter for name, organisation in organisations.items()
    }
    return {name: meter for name, meter in meters.items() if isinstance(meter, Account)}


def _with_outbox(
    name: str,
    settings: Settings,
    holdings: Holdings,
    agreed: Agreed,
    device: torch.device,
) -> Organisation:
    algorithm = find(settings.algorithm)
    features = name in holdings.columns
    labels = name in holdings.label_owners
    party = settings.parties.get(name, PartySettings())
    labelled = settings.label_owners.get(name, LabelOwnerSettings())
    section = (
        "label_owners"
        if name in settings.label_owners and not features
        else settings.section
    )
    budget = party.budget
    if budget is not None:
        _check_can_be_kept(
            settings,
            name,
            place_of(section, name, "budget"),
            from_columns=features and not labels,
        )
    given = _joined(name, party.outbox, labelled.outbox)
    rules = {}
    if given or budget is not None:
        rules = rules_from(
            given,
            owner=name,
            releases=_released_by(algorithm, features=features, labels=labels),
            from_columns=algorithm.from_columns,
            classes=len(holdings.encoder.classes) if labels else None,
            budget=budget,
            epochs=(
                epochs_of(settings)
                if settings.train.sampling == "epoch"
                else agreed.one.most_often()
            ),
            known_to=holdings.known_to,
            section=section,
        )
    engine = settings.engine
    secret = settings.models_of(name) == "secret"
    organisation = Organisation.at(
        name, agreed, seed=engine.seed, secret=secret, rules=rules, device=device
    )
    if features and organisation.outbox.by_purpose:
        of_training = [
            name for name, release in algorithm.releases.items() if release.of_training
        ]
        organisation.outbox.guard = UsedRows(
            name, agreed, partial(holdings.own_ids, name), of_training=of_training
        )
    if rules and engine.noise == "secret":
        organisation.outbox.noise = Secret()
    if (
        features
        and not labels
        and any(not isinstance(rule.mechanism, Plain) for rule in rules.values())
    ):
        organisation.outbox.meter = Account(
            name,
            agreed,
            holdings.own_ids(name).tolist(),
            budget,
            per_row=algorithm.per_row,
        )
    return organisation


def _check_can_be_kept(
    settings: Settings, name: str, where: str, *, from_columns: bool
) -> None:
    """Refuse a budget that nothing could keep: one for labels, or beside releases that
    no rule puts noise on."""
    if not from_columns:
        raise ConfigError(
            f"{where} can never be kept: a budget is for columns that leave with noise,"
            f" and what '{name}' sends as the label owner follows its labels and its"
            " own columns as they are. Remove it; labels are protected by"
            ' outbox.labels = { mechanism = { name = "randomized_response",'
            " epsilon = 2.0 } }."
        )
    if bare := find(settings.algorithm).bare(settings.config):
        raise ConfigError(
            f"{where} can never be kept with {settings.algorithm}: it also releases"
            f" {', '.join(bare)}, and no rule puts noise on that for each row. Remove"
            " the budget, or take an algorithm that sends an embedding or logits of"
            " each row and nothing else of columns, such as fdml."
        )


def _released_by(algorithm: AnyAlgorithm, *, features: bool, labels: bool) -> list[str]:
    """List the names that an organisation may have rules for."""
    if algorithm.nested is None:
        return list(algorithm.releases)
    columns = algorithm.from_columns
    driven = [name for name in algorithm.releases if name not in columns]
    return [*(columns if features else ()), *(driven if labels else ())] or driven


def _joined(
    name: str, columns: Mapping[str, Any], labels: Mapping[str, Any]
) -> dict[str, Any]:
    """Join an organisation's rules from both of its tables."""
    for rule in set(columns) & set(labels):
        raise ConfigError(
            f"'{name}' has one outbox, and a rule for {rule!r} in both of its tables:"
            " [[data_owners]] and [[label_owners]]. Keep one."
        )
    return {**columns, **labels}


def _feature_owner(
    organisation: Organisation, settings: Settings, holdings: Holdings
) -> roles.FeatureOwner:
    """Build the role that holds columns and their model, which those with labels alone
    may ask."""
    algorithm = find(settings.algorithm)
    columns = holdings.columns[organisation.name]
    features = columns.features
    own = organisation.name in holdings.label_owners
    model, body = local_model(
        settings, organisation, features, holdings.outputs, own=own
    )
    more = [] if algorithm.nested is None else [organisation.batches]
    owner: roles.FeatureOwner = algorithm.feature_owner(
        organisation, features, model, settings.config, *more
    )
    owner.serves_for = frozenset(holdings.label_owners)
    if settings.train.pretrain:

        def alone() -> None:
            every = (
                features[holdings.trained_rows]
                if columns.every is None
                else columns.every
            )
            pretrain(
                body,
                every.to(organisation.device),
                settings.train.pretrain,
                organisation.generator,
            )

        organisation.pretrain = alone
    return owner


def _label_owner(
    organisation: Organisation, settings: Settings, holdings: Holdings, agreed: Agreed
) -> roles.LabelOwner:
    """Build the role that holds labels; where its owner's rule says so, those of
    training rows are drawn at random."""
    name = organisation.name
    algorithm = find(settings.algorithm)
    held = holdings.label_owners[name]
    loss = holdings.loss
    labels = held.labels
    drawn = None
    rule = organisation.outbox.rules.get(LABELS)
    train = held.splits.get("train")
    loss = _weighted(
        loss,
        settings,
        holdings,
        None if train is None else labels[train],
        is_drawn=rule is not None,
    )
    if rule is not None and train is not None:
        labels = labels.clone()
        labels[train], drawn = _drawn_once(
            organisation, holdings, rule.mechanism, train
        )
    more: list[Any] = []
    if algorithm.nested is not None:
        spec = settings.label_model or "mlp"
        start = organisation.start(seed_for(settings.engine.seed, name, "head"))

        def build(shape: tuple[int, ...]) -> nn.Module:
            return models.build_head(
                spec,
                shape,
                loss.outputs,
                seed=start,
                owner=name,
                allow=settings.allow_models,
            )

        more = [agreed[name], build]
    owner: roles.LabelOwner = algorithm.label_owner(
        organisation, labels, loss, settings.config, *more
    )
    owner.drawn = drawn
    if held.weights is not None:
        _check_weighs(settings, name, is_drawn=rule is not None)
        owner.row_weights = held.weights.to(owner.device)
    return owner


def _check_weighs(settings: Settings, name: str, *, is_drawn: bool) -> None:
    """Raise where rows cannot count as a column of the label owner says."""
    where = place_of(settings.section, name)
    if not find(settings.algorithm).weighs_rows:
        able = ", ".join(
            known for known, algorithm in ALGORITHMS.items() if algorithm.weighs_rows
        )
        raise ConfigError(
            f"{where}: weights is for {able}, and the algorithm is"
            f" {settings.algorithm}. Remove it."
        )
    if is_drawn:
        raise ConfigError(
            f"{where}: weights change what others are sent of each row, and this label"
            " owner's rule draws labels at random, so that others learn little of"
            " them: a weight may tell what the label was. Remove one of them."
        )


def _weighted(
    loss: Loss,
    settings: Settings,
    holdings: Holdings,
    labels: Tensor | None,
    *,
    is_drawn: bool,
) -> Loss:
    """Give the loss class weights as [train] says; balanced ones follow these labels,
    those of its training rows."""
    wanted = settings.train.class_weights
    classes = holdings.encoder.classes
    if wanted == "equal" or labels is None:
        return loss
    if not isinstance(loss, CrossEntropy | Logistic):
        raise ConfigError(
            "[train] class_weights is for classes, and the label is a number."
            " Remove it."
        )
    if isinstance(wanted, str):
        if is_drawn:
            raise ConfigError(
                '[train] class_weights = "balanced" counts labels, and this label'
                " owner's rule draws them at random, so that others learn little of"
                " them. Give the weights by class, as in { yes = 5.0 }."
            )
        return replace(loss, weights=balanced(labels, len(classes)))
    names = [spellings(name) for name in classes]
    for name in wanted:
        if not any(name in known for known in names):
            raise ConfigError(
                f"[train] class_weights names a class {name!r}, and none of the"
                f" {len(classes)} classes of the training rows is called so. Write it"
                " as the label column does."
            )
    weights = (
        next((number for name, number in wanted.items() if name in known), 1.0)
        for known in names
    )
    return replace(loss, weights=tuple(weights))


def _drawn_once(
    organisation: Organisation,
    holdings: Holdings,
    mechanism: Mechanism,
    train: Tensor,
) -> tuple[Tensor, DpEvent]:
    """Draw labels of the training rows at random. At a site, a row's label is drawn
    once for all its runs."""
    held = holdings.label_owners[organisation.name]

    def draw(rows: Tensor) -> tuple[Tensor, DpEvent]:
        return _drawn(
            organisation, holdings, mechanism, held.labels[train[rows]], train[rows]
        )

    if held.drawn is None:
        return draw(torch.arange(len(train)))
    _, event = mechanism.apply(held.labels[:0], organisation.outbox.noise)
    classes = hashlib.sha256(repr(holdings.encoder.classes).encode()).hexdigest()[:16]
    rule = {"mechanism": type(mechanism).__name__, "classes": classes}
    ids = held.ids if held.own is None else held.own
    return held.drawn.once(
        ids[train.numpy()], held.labels[train], {**rule, **event.parameters}, draw
    )


def _drawn(
    organisation: Organisation,
    holdings: Holdings,
    mechanism: Mechanism,
    labels: Tensor,
    train: Tensor,
) -> tuple[Tensor, DpEvent]:
    """Draw labels of the training rows. Where a mechanism can use what to expect of a
    row, it is told what the owner's own columns say, learned from labels that were
    drawn already."""
    name = organisation.name
    noise = organisation.outbox.noise
    if not isinstance(mechanism, TwoStage) or name not in holdings.columns:
        return mechanism.apply(labels, noise)
    x = holdings.columns[name].features.flatten(1)[train]
    loss = CrossEntropy(mechanism.classes)

    def learn(rows: Tensor, drawn: Tensor, others: Tensor) -> Tensor:
        few = rows[:PRIOR_ROWS]
        model = estimators.learn("logistic", x[few], drawn[: len(few)], loss, seed=0)
        return loss.scores(model([x[others]]))

    return mechanism.draw(labels, noise, learn)


def local_model(
    settings: Settings,
    organisation: Organisation,
    features: Tensor,
    outputs: int = 0,
    *,
    own: bool = False,
) -> tuple[nn.Module, nn.Module]:
    """Build a party's own model, as its owner wants it or else as agreed, with the head
    that the algorithm may want for so many `outputs`; and beside it the same without
    that head. `own` says that its organisation holds the labels."""
    name = organisation.name
    seed = settings.engine.seed
    spec = settings.parties.get(name, PartySettings()).model or settings.model or "mlp"
    start = organisation.start(seed_for(seed, name, "model"))
    allow = settings.allow_models
    body = models.build(
        spec, tuple(features.shape[1:]), seed=start, owner=name, allow=allow
    )
    body = models.seeded(body, organisation.generator, owner=name)
    head = organisation.start(seed_for(seed, name, "head"))
    model = find(settings.algorithm).complete(
        body, features[:1], outputs, seed=head, config=settings.config, own=own
    )
    model = models.seeded(model, organisation.generator, owner=name)
    if organisation.outbox.meter is not None and mixes_rows(
        model, features, organisation.generator
    ):
        raise ConfigError(
            f"The model of '{name}' lets the rows of a batch change each other, as"
            " BatchNorm does. So the noise for a row does not cover what it shows"
            " through the others, and no epsilon would be true. Use GroupNorm or"
            " LayerNorm, or remove the noise."
        )
    return model, body


def models_told(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Tell for a summary where the initial weights of these came from, as far as they
    have models to train."""
    if not find(settings.algorithm).draws_weights:
        return {}
    return {name: settings.models_of(name) for name in names if name != SERVER}


def mixes_rows(model: nn.Module, features: Tensor, generator: Generator) -> bool:
    """Tell whether, in training, what comes out for a row depends on the others: one
    row is changed, and the rest looked at. Dropout draws the same for both, and goes on
    as if nothing had been drawn."""
    if not len(features):
        return False
    chosen = features[torch.linspace(0, len(features) - 1, ROWS + 1).long()]
    before = generator.get_state()
    outputs = []
    for row in chosen[:2]:
        generator.set_state(before)
        trial = copy.deepcopy(model, {id(generator): generator}).train()
        with torch.no_grad():
            outputs.append(trial(torch.cat([row[None], chosen[2:]]))[1:])
    generator.set_state(before)
    first, second = outputs
    return not torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def check_parties(settings: Settings, holdings: Holdings) -> None:
    """Check that somebody holds columns, and that every party in the settings takes
    part."""
    if not holdings.columns:
        raise DataError(
            "No party holds any feature columns; there is nothing to learn from."
        )
    there = [
        name
        for name in holdings.names
        if settings.section == "parties" or name in holdings.columns
    ]
    for name in settings.parties:
        if name not in there:
            hint = did_you_mean(name, there)
            raise ConfigError(
                f"{place_of(settings.section, name)} is no party of this"
                f" federation{hint}; there are {', '.join(map(repr, there))}."
            )


def warn_untrained(is_trained: bool) -> None:
    """Warn where rows are predicted by models that nobody has trained."""
    if not is_trained:
        warnings.warn(
            "This federation was not trained: these predictions are of models as they"
            " were drawn, and mean nothing. Call fit() first, or colonnade.load(DIR)"
            " for a run that was trained.",
            stacklevel=3,
        )


def device_of(name: str) -> torch.device:
    """Find the device that [federation] device names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"[federation] device {name!r} cannot be used here:"
            f" {str(error).splitlines()[0]}"
        ) from None
    return device


def check_starts(settings: Settings, before: Settings, where: Path) -> None:
    """Raise unless training can start with the models of this run: algorithm, models
    and parties must be the same."""
    able = [
        n
        for n, a in ALGORITHMS.items()
        if not (
            a.nested
            or a.config.converges
            or a.config.grows
            or a.config.most_epochs is not None
        )
    ]
    if settings.algorithm not in able:
        raise ConfigError(
            f"Training {settings.algorithm} cannot start from a run: its models are"
            " learned anew for the rows that there are. Leave the run out, or choose"
            f" one of {', '.join(able)}."
        )
    for what, now, then in (
        ("algorithm", settings.algorithm, before.algorithm),
        ("model", dict(settings.model), dict(before.model)),
        ("parties", sorted(settings.parties), sorted(before.parties)),
    ):
        if now != then:
            raise ConfigError(
                f"To start from {where}, {what} must be the same: it is {now!r} now and"
                f" was {then!r}."
            )


def check_affordable(
    trained: Trained, to: str, chunks: Sequence[Rows], away: Collection[str] = ()
) -> None:
    """Raise where a party here would refuse to release these rows to be predicted. It
    is asked before anybody is: who had answered by then would have charged its rows for
    nothing."""
    names = [
        name
        for name, release in find(trained.settings.algorithm).releases.items()
        if release.is_as_wide_as_told
    ]
    for party, account in trained.accounts.items():
        organisation = trained.organisations[party]
        role = organisation.roles.get("features")
        if (
            account.budget is None
            or party == to
            or party in away
            or not isinstance(role, roles.FeatureOwner)
        ):
            continue
        for name in names:
            row = torch.zeros(1, *role.introduce(roles.Introduce()).shape)
            for rows in chunks:
                rule = organisation.outbox.rule(name, rows.name, row.numel())
                account.check(
                    name,
                    rows.name,
                    rows.size,
                    rule.mechanism.apply(row, torch.Generator())[1],
                )


def holdings_of(
    settings: Settings,
    tables: Mapping[str, Table] | None = None,
    salt: str = "",
    fitted: Mapping[str, dict[str, Any]] | None = None,
) -> Holdings:
    """Collect what all organisations hold, from where the settings say, or from these
    tables of those with columns. A label owner at its site divided its rows with a
    `salt`; an earlier run may have `fitted` columns and labels."""
    if settings.data.dataset is not None and tables is None:
        return from_dataset(settings)
    known = next(
        (
            dict(state["labels"])
            for state in (fitted or {}).values()
            if "labels" in state
        ),
        None,
    )
    encoder = None if known is None else Labels.from_state(known)
    if encoder is not None and settings.data.positive is not None:
        encoder = encoder.with_positive(settings.data.positive)
    held = tables or read_tables(settings, fitted)
    labelled = read_labels(settings)
    if len({*held, *labelled}) == 1:
        warnings.warn(
            f"{min(held)!r} holds all columns and the labels: an ordinary model is"
            " trained, and nothing crosses. A federation has a table for each of two"
            " organisations or more.",
            stacklevel=2,
        )
    _refuse_labels_among_columns(held, labelled)
    return from_tables(
        settings, held, labelled, salt=salt, encoder=encoder, fitted=fitted
    )


def _refuse_labels_among_columns(
    columns: Mapping[str, Table], labelled: Mapping[str, Table]
) -> None:
    """A model that reads the label in somebody's columns scores as if it were perfect."""
    for owner, table in (labelled or columns).items():
        for name, other in columns.items():
            if (
                name != owner
                and table.label is not None
                and str(table.label.name) in other.columns
            ):
                raise DataError(
                    f"'{name}' has the column {str(table.label.name)!r} too, which is"
                    f" the label of '{owner}': a model would read the answer there."
                    f" Leave it out: list the other columns of '{name}', columns ="
                    " [...]."
                )
