"""Calls to parties elsewhere, made again when they are lost, as [federation] says."""

from __future__ import annotations

from colonnade.core import Transport
from colonnade.settings.sections import EngineSettings
from colonnade.transport.faulty import Distant
from colonnade.transport.holding import Holding
from colonnade.transport.remote import Remote
from colonnade.transport.retrying import Retrying


def with_retries(transport: Transport, engine: EngineSettings) -> Transport:
    """A transport that makes lost calls again.

    Where the transport joins calls, what is answered by Done waits for the next call.
    It does not wait where a driver goes on without who does not answer, since the
    driver must know who did what.
    """
    waits = engine.on_missing == "wait"
    again = Retrying(
        transport, deadline=engine.deadline, retries=engine.retries, wait=waits
    )
    is_remote = isinstance(transport, Remote) and transport.joins
    joins = is_remote or isinstance(transport, Distant)
    needs_everybody = engine.on_missing in ("fail", "wait")
    return Holding(again) if joins and needs_everybody else again
