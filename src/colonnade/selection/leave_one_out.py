"""What everybody together knows about the label, less what the others know without one: that one's score.

Not in the paper; a natural baseline on the same estimates. Of two participants with the same columns neither is missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from colonnade.selection.group_testing import Group, Information


def leave_one_out(participants: Sequence[str], information: Information) -> dict[str, float]:
    """I(X_P; Y) - I(X_{P without i}; Y), from one batch of m + 1 groups."""
    everybody: Group = tuple(participants)
    without = {name: tuple(other for other in everybody if other != name) for name in everybody}
    found = information([everybody, *without.values()])
    return {name: found[everybody] - found[others] for name, others in without.items()}
