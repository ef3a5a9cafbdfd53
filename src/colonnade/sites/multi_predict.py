"""Prediction across machines where several hold labels: both sides' own parts of it.

    label owner k                                   every data owner
    Join, Kept, Agree, Look, Take              ->   as where one holds labels (`site_session`, `site_reader`)
    Introduce     once                         ->   what it sends per row
    Embed         the batch k:predict[..],     ->   by the average W_d, or by W_{d,k}, under its outbox rules and from
                  aggregated or own                 its budget; to k alone

The aggregation server and the other label owners are not asked, and need not be there: after a round every label owner
has the aggregated weights in its own checkpoint, beside its own. No data owner may be missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from colonnade.core import Peers
from colonnade.datasets.labels import Labels
from colonnade.errors import ConfigError
from colonnade.federation.federation import Predictions, decoded
from colonnade.federation.multi import Model
from colonnade.rows.holdings import Holding, asked_for
from colonnade.rows.shares import Shares, asked_by
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import Own
from colonnade.sites.member import Asked
from colonnade.sites.multi_member import MultiMember

if TYPE_CHECKING:
    from colonnade.sites.session import Predict, Rows, Session

MODELS = ("aggregated", "own")


class Asking:
    """A label owner's own part: the labels are not needed, its weights are."""

    def __init__(self, session: Session, model: str = "aggregated") -> None:
        if model not in MODELS:
            raise ConfigError(f"A label owner predicts with one of {', '.join(MODELS)}; found {model[:40]!r}.")
        self.session, self.model, self.names = session, cast(Model, model), list(session.own.settings.parties)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def open(self, rows: Rows) -> Predict:
        session, name = self.session, self.session.own.name
        shares = Shares(asked_by(name, [name], rows.ids), {}, rows.ids, session.encoder, 1)
        member = MultiMember(replace(session.own, settings=session.local), shares, session.site.device)
        asks, introduction = member.owner, member.nested.introduction
        asks.peers = Peers(name, self.names, session.patience.around(session.carrier()), asks.ledger)
        if not self.shapes:
            told = asks.peers.ask(member.nested.introduce())
            self.shapes = {owner: tuple(card.shape) for owner, card in told.items()}
        agreed = member.agreed[name].fingerprint()  # of the rows that a data owner is told to take, one by one
        asks.meet({owner: introduction(shape, len(rows.ids), agreed) for owner, shape in self.shapes.items()})
        widths = {owner: shape[-1] for owner, shape in self.shapes.items()}
        session.patience.look(asks.peers, asks.rows, widths, member.algorithm)
        member.load(session.folder.path, session.mark["number"], name)

        def predict(ids: list[str]) -> Predictions:
            wanted, places = asked_for(ids, rows.ids, "were asked for", "")
            assert member.asked is not None
            member.asked.splits = {"predict": places}
            return decoded(shares, wanted, member.outputs("predict", self.model))

        return predict


def to_predict(own: Own, device: torch.device, asked: Asked, folder: Path) -> MultiMember:
    """A data owner's own part: as the checkpoint left it, for rows that one label owner is to predict."""
    owners = list(own.settings.label_owners)
    known_to = int(RunDirectory(folder).fitted(own.name, json.loads).get("known_to", 1))
    elsewhere = Labels(", ".join(owners), "classification")
    held, rows = {own.name: Holding(asked.columns)}, asked_by(asked.by, owners, asked.ids)
    member = MultiMember(own, Shares(rows, held, asked.ids, elsewhere, known_to), device)
    member.load(folder, asked.number, asked.by)
    return member
