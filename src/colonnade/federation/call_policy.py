"""What a driver does about parties that do not answer, as [federation] says.

    deadline, retries       every call that can be lost is made again under its number (`transport.retrying`)
    on_missing = "fail"     then the run ends with an error; --resume continues it from the last checkpoint
    on_missing = "wait"     it goes on asking for a sign of life until the party is back
    on_missing = "stale"    the party's last answer for the same rows stands in (`core.missing`)
    on_missing = "skip"     the party is left out of the batch

Between parties of one process no call is lost, so with "fail" nothing of this is needed there.

Where several organisations hold labels there are two kinds of drivers. A label owner must have every data owner's
answer. The aggregation server need not have every label owner's: who failed or was silent is left out of the round and
comes back (`algorithms.multi_vfl`); with "wait" it waits for the silent ones. A call that begins a round is answered at
its end, so `deadline` times `retries` must be above the longest round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from colonnade.algorithms.algorithm import AnyAlgorithm, Kind
from colonnade.core import Peers, Transport
from colonnade.core.missing import Missing
from colonnade.core.peers import Answers
from colonnade.core.presence import Presence
from colonnade.core.roles import LabelOwner
from colonnade.errors import ConfigError
from colonnade.rows.holdings import Holdings
from colonnade.settings.federation_file import EngineSettings, Settings
from colonnade.transport import Retrying


class CallPolicy:
    """For one driver; `elsewhere` says that some parties are not in this process."""

    def __init__(self, engine: EngineSettings, *, elsewhere: bool) -> None:
        self.engine, self.needed = engine, elsewhere or engine.on_missing != "fail"

    def around(self, transport: Transport) -> Transport:
        """The same transport, with its lost calls made again."""
        if not self.needed:
            return transport
        wait = self.engine.on_missing == "wait"
        return Retrying(transport, deadline=self.engine.deadline, retries=self.engine.retries, wait=wait)

    def look(
        self, peers: Peers, rows: Callable[[str], Tensor], widths: Mapping[str, int], algorithm: AnyAlgorithm
    ) -> None:
        """From here on every answer is looked at before it is used."""
        if self.needed:
            held = None if peers.presence is None else peers.presence.size
            peers.answers = Answers(rows, widths, per_row=algorithm.per_row, wide=algorithm.of_told_width, held=held)

    def mind(self, peers: Peers, driver: LabelOwner, algorithm: AnyAlgorithm) -> None:
        """The same, and a missing one is dealt with. The driver has met everybody."""
        self.look(peers, driver.rows, driver.widths, algorithm)
        if self.engine.on_missing in ("stale", "skip"):
            allowed = algorithm.missing(driver.config)
            peers.missing = Missing(self.engine.on_missing, allowed, driver.outbox, driver.rows, len(driver.labels))


def presence_of(
    settings: Settings, holdings: Holdings, driver: LabelOwner, names: Sequence[str], algorithm: AnyAlgorithm
) -> Presence | None:
    """Who holds which rows, where this differs or a partner is to be left out at random."""
    if not (settings.rows_differ or settings.party_dropout):
        return None
    return Presence(
        driver.name,
        names,
        holdings.away,
        driver.rows,
        per_row=algorithm.per_row,
        slopes=algorithm.named(Kind.GRADIENT, Kind.LOGIT_GRADIENT),
        dropout=settings.party_dropout,
        seed=settings.engine.seed,
    )


def left_out(peers: Peers, parties: Collection[str]) -> AbstractContextManager[None]:
    """As long as this lasts, these parties are not asked, where a model can do without them."""
    if peers.presence is None:
        raise ConfigError(
            f"Nobody can be left out of this model, and {', '.join(map(repr, parties))} is to be. Train with [data] "
            'rows = "label_owner", or with [train] party_dropout.'
        )
    return peers.presence.without(parties)
