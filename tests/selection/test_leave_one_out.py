"""The score is what is lost without one."""

from __future__ import annotations

from colonnade.selection.methods import leave_one_out


def test_what_is_lost_without_one() -> None:
    known = {("a", "b", "c"): 1.0, ("b", "c"): 0.25, ("a", "c"): 1.0, ("a", "b"): 1.125}
    asked = []

    def information(groups):  # type: ignore[no-untyped-def]
        asked.append(list(groups))
        return {group: known[group] for group in groups}

    assert leave_one_out(["a", "b", "c"], information) == {"a": 0.75, "b": 0.0, "c": -0.125}
    assert [sorted(groups) for groups in asked] == [sorted(known)], "in one batch"
