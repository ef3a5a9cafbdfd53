"""Echoes that answer as one."""

from __future__ import annotations

from tests.conformance.echo import Echo, asker, echoes

from colonnade.core import Outbox, Peers
from colonnade.transport import Cohort, Cohorts, InProcess, groups


def cohort_of_echoes() -> tuple[dict[str, Echo], Peers, Outbox, Cohorts]:
    parties = echoes()
    (group,) = groups(parties)
    transport = Cohorts(InProcess(parties), [Cohort(group)])
    return parties, *asker(transport), transport
