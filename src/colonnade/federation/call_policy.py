"""What a driver does about parties that do not answer, as [federation] says.

    deadline, retries       every call that can be lost is made again under its number (`transport.retrying`)
    on_missing = "fail"     then the run ends with an error; --resume continues it from the last checkpoint
    on_missing = "wait"     it goes on asking for a sign of life until the party is back
    on_missing = "stale"    the party's last answer for the same rows stands in (`core.missing`)
    on_missing = "skip"     the party is left out of the batch

Between parties of one process no call is lost, so with "fail" there is no policy there.

Where several organisations hold labels there are two kinds of drivers. A label owner
must have every data owner's answer. The aggregation server need not have every label
owner's: who failed or was silent is left out of the round and comes back
(`algorithms.multi_vfl`); with "wait" it waits for the silent ones. A call that begins a
round is answered at its end, so `deadline` times `retries` must be above the longest
round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from colonnade.algorithms.algorithm import AnyAlgorithm, Kind
from colonnade.core import Peers
from colonnade.core.missing import Missing
from colonnade.core.presence import Presence
from colonnade.core.roles import LabelOwner
from colonnade.errors import ConfigError, did_you_mean
from colonnade.optim.losses import Loss
from colonnade.rows.holdings import Holdings
from colonnade.settings.federation_file import Settings


def stand_ins(rule: str, driver: LabelOwner) -> Missing:
    """Build what stands in for a party that does not answer. The driver has met
    everybody."""
    return Missing(
        rule,
        driver.config.stand_ins(),
        driver.outbox,
        driver.rows,
        len(driver.labels),
        driver.y,
    )


def presence_of(
    settings: Settings,
    holdings: Holdings,
    driver: LabelOwner,
    names: Sequence[str],
    algorithm: AnyAlgorithm,
) -> Presence:
    """Say which party holds which rows, where this differs or a partner is to be left
    out at random."""
    per_row = algorithm.per_row
    slopes = algorithm.named(Kind.GRADIENT, Kind.LOGIT_GRADIENT)
    dropout = settings.party_dropout
    seed = settings.engine.seed
    return Presence(
        driver.name,
        names,
        holdings.away,
        driver.rows,
        per_row=per_row,
        slopes=slopes,
        dropout=dropout,
        seed=seed,
    )


def left_out(peers: Peers, parties: Collection[str]) -> AbstractContextManager[None]:
    """As long as this lasts, these parties are not asked, where a model can do without
    them."""
    if isinstance(parties, str) or not set(parties) < set(peers):
        unknown = (
            [parties]
            if isinstance(parties, str)
            else [name for name in parties if name not in peers]
        )
        what = (
            f"found {unknown[0]!r}{did_you_mean(unknown[0], list(peers))}"
            if unknown
            else "found all of them"
        )
        raise ConfigError(
            f"`without` lists some of {', '.join(map(repr, peers))}, and not all;"
            f" {what}."
        )
    if peers.presence is None:
        raise ConfigError(
            f"Nobody can be left out of this model, and {', '.join(map(repr, parties))}"
            ' is to be. Train with [data] rows = "label_owner", or with [train]'
            " party_dropout."
        )
    return peers.presence.without(parties)


def calibrated(
    algorithm: AnyAlgorithm,
    driver: LabelOwner,
    silent: Collection[str],
    outputs: Tensor,
) -> Tensor:
    """Make outputs to which some parties added nothing mean what outputs of everybody
    mean: they are scaled by one number and shifted by one each, as fits the validation
    rows best without these parties. Outputs stay as they are where there are no
    validation rows, where this model learned to do without a partner, and where last
    answers stand in for parties."""
    missing = driver.peers.missing
    # of what grows, answers are to single steps
    combines = algorithm.combine is not None and not algorithm.config.grows
    skips = (
        missing is not None and missing.rule == "skip" and driver.peers.presence is None
    )
    if missing is None or not skips or not combines:
        return outputs
    known = missing.said([name for name in driver.shapes if name not in silent])
    if known is None or not known[0]:
        return outputs
    said, labels = known
    with torch.no_grad():
        assert algorithm.combine is not None
        before = algorithm.combine(driver, said).double()
    scale, shift = _fitted(driver.loss, before, labels)
    return (outputs.double() * scale + shift).to(outputs.dtype)


def _fitted(loss: Loss, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit Platt's scaling: the scale and shifts with the least loss. A weak pull
    towards 1 keeps the scale finite."""
    log_scale = torch.zeros(
        (), dtype=torch.float64, device=outputs.device, requires_grad=True
    )
    shift = torch.zeros(
        outputs.shape[-1],
        dtype=torch.float64,
        device=outputs.device,
        requires_grad=True,
    )
    optimizer = torch.optim.LBFGS(
        [log_scale, shift], max_iter=100, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        pull = (log_scale.square() + 1e-3 * shift.square().sum()) / len(labels)
        total = loss(outputs * log_scale.exp() + shift, labels) + pull
        torch.autograd.backward(total)
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return log_scale.detach().exp(), shift.detach()
