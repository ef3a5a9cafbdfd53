"""What has a driver begin: an order that the lead signed, and that counts once.

The relay carries it, and can neither write one nor use one again: without an order of
the lead's it starts nothing.

    lead:    signed(kit, wish)         who is to do what with which run, when, and a number used once
    driver:  opened(order, ...)        by the lead of its own agreed file, for it, today, and not taken before

Which orders were taken is in its own runs/orders.json for as long as they could be
brought again.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from colonnade.core import files
from colonnade.core.files import write_text
from colonnade.errors import BoundaryError, ConfigError
from colonnade.runs.layout import ORDERS
from colonnade.transport.identity import (
    CERTIFICATE,
    KEY,
    LEAD,
    Identity,
    read_certificate,
    read_key,
    sign_with,
)

CONTEXT = b"colonnade/order/1"
VALID = timedelta(days=1)
CURE = (
    "Put back a copy; who removes it lets the relay bring orders of the last day again"
)


def lead_of(driver: str) -> str:
    """The name in the certificate of the lead, who is of the driver's organisation."""
    return f"{LEAD}@{driver.replace('_', '-').lower()}.local"


def signed(startup: Path, wish: Mapping[str, Any]) -> str:
    """An order, by the certificate and key in the folder `startup` of the lead's kit."""
    key = read_key(startup / KEY, "the lead's kit")
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigError(
            f"{startup / KEY} is no RSA key. Take it from the lead's kit again."
        )
    said = json.dumps(
        {**wish, "at": datetime.now(UTC).isoformat(), "once": secrets.token_hex(16)}
    )
    certificate = read_certificate(startup / CERTIFICATE).public_bytes(
        serialization.Encoding.DER
    )
    parts = {
        "certificate": certificate,
        "signature": sign_with(key, CONTEXT, said.encode()),
    }
    return json.dumps(
        {"said": said}
        | {name: base64.b64encode(part).decode() for name, part in parts.items()}
    )


def opened(order: bytes, identity: Identity, lead: str, runs: Path) -> dict[str, Any]:
    """What the lead of this name wishes of this site; it is taken from here on.
    BoundaryError where it is no order."""
    try:
        parts = json.loads(order)
        said = str(parts["said"])
        certificate, signature = (
            base64.b64decode(parts[name], validate=True)
            for name in ("certificate", "signature")
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BoundaryError("What came to begin a run is no order.") from None
    identity.verify_lead(lead, certificate, CONTEXT, said.encode(), signature)
    wish: dict[str, Any] = json.loads(said)
    if wish["driver"] != identity.name:
        raise BoundaryError(
            f"The order is for {str(wish['driver'])[:80]!r}, and this is"
            f" '{identity.name}'."
        )
    _take(runs / ORDERS, str(wish["once"]), datetime.fromisoformat(wish["at"]))
    return wish


def _take(path: Path, once: str, at: datetime) -> None:
    """Note an order as taken. Its own process reads and writes the file while it
    begins, and no other."""
    now = datetime.now(UTC)
    if abs(now - at) > VALID:
        raise BoundaryError(
            f"The order is of {at:%Y-%m-%d %H:%M} UTC, and one is good for a day. Set"
            " the clocks."
        )
    taken = files.read_json(path, CURE)["taken"] if path.exists() else {}
    if once in taken:
        raise BoundaryError(
            f"The order of {at:%Y-%m-%d %H:%M} UTC was brought again, and each counts"
            " once."
        )
    kept = {
        one: when
        for one, when in taken.items()
        if now - datetime.fromisoformat(when) <= 2 * VALID
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, files.json_with_digest({"taken": kept | {once: at.isoformat()}}))
