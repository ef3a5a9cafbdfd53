"""What a FLARE job that serves names: a member as in every job, which at the site that
drives may also listen.

A site lets a job name this class or not, in its own `local/resources.json`; and none of
them listens without [serve] in its own party.toml.
"""

from __future__ import annotations

import threading

from nvflare.collab import collab

from colonnade.flare.members import Member
from colonnade.serving.site_service import serve_at
from colonnade.sites.site import Site

LEFT = 8.0
"""Seconds for the service to end when its job does: FLARE gives ten."""


class ServingMember:
    """At a site: one organisation."""

    def __init__(self) -> None:
        self.member = Member()
        self.ending = threading.Event()
        self.member.serve = self.serve

    def start(self) -> None:
        self.member.start()

    def call(self, data: bytes) -> bytes:
        return self.member.call(data)

    def end(self) -> None:
        """The job ends, or is aborted: requests under way are answered where they can."""
        self.ending.set()
        self.member.leave(LEFT)

    def serve(self, site: Site, run: str, model: str | None) -> None:
        serve_at(site, run, self.ending.is_set, model=model)


for _name, _mark in (
    ("start", collab.init),
    ("call", collab.publish),
    ("end", collab.final),
):
    setattr(ServingMember, _name, _mark(getattr(ServingMember, _name)))
