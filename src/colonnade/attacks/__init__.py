"""Attacks on what parties receive, so that a release can be judged before it is made."""

from colonnade.attacks.audit import Audit, audit_federation, audit_run
from colonnade.attacks.finding import Finding

__all__ = ["Audit", "Finding", "audit_federation", "audit_run"]
