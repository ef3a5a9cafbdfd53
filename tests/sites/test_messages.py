"""What sites tell each other beside the algorithm's own requests."""

from __future__ import annotations

from colonnade.core import Message
from colonnade.sites import messages


def test_nothing_of_a_row_has_a_field_to_be_in() -> None:
    """No tensor, no list of texts, in which ids could be; but for the numbers by which
    a partner finds its rows in a batch, which are hashes under the label owner's secret
    and are in both ledgers (`test_keys_differ`)."""
    kinds = [
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message)
    ]
    ours = [kind for kind in kinds if kind.__module__ == messages.__name__]
    assert len(ours) > 10
    allowed = {
        str(hint)
        for hint in (str, int, bool, dict[str, int], dict[str, float], tuple[int, ...])
    }
    for kind in ours:
        hints = {
            name: str(hint)
            for name, hint in kind.hints().items()
            if (kind, name) != (messages.Prepare, "numbers")
        }
        assert set(hints.values()) <= allowed, kind.kind
