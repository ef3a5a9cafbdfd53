"""What has a driver begin: an order that the lead signed, and that counts once.

The relay carries it, and can neither write one nor use one again: without an order of
the lead's it starts nothing.

    lead:    signed(kit, wish)         who is to do what with which run, when, and a number used once
    driver:  opened(order, ...)        by the lead of its own agreed file, for it, today, and not taken before

Which orders were taken is in its own store.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from colonnade.errors import BoundaryError, ConfigError
from colonnade.store import SiteStore
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


def opened(
    order: bytes, identity: Identity, lead: str, store: Callable[[], SiteStore]
) -> dict[str, Any]:
    """What the lead of this name wishes of this site; it is taken from here on.

    Args:
        order: As it was brought.
        identity: This site's.
        lead: Whose orders it follows.
        store: Opens this site's store, in which orders are written down as taken.

    Raises:
        BoundaryError: It is no order of this lead's for this site.
        StoreError: It was brought before, or is too old.
    """
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
    written = datetime.fromisoformat(wish["at"])
    store().take_order(str(wish["once"]), written, VALID)
    return wish
