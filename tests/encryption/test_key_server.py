"""A key server opens totals and nothing else; three parties add up through somebody who cannot read."""

from __future__ import annotations

import pytest
import torch

from colonnade.core import Batches, Ledger, Organisation, Peers
from colonnade.encryption import read_public_key
from colonnade.encryption.key_server import AskPublicKey, KeyServer, Open
from colonnade.errors import PartyError
from colonnade.transport import InProcess

BATCHES = Batches({"train": torch.arange(4)}, batch_size=4, epochs=1, seed=0)


def test_a_total_is_opened_and_a_single_party_is_not() -> None:
    server = KeyServer(Organisation.at("keys", BATCHES), limit=10.0)
    peers = Peers("adder", ["keys"], InProcess({"keys": server}, through_bytes=True), Ledger("adder"))
    public = read_public_key(peers["keys"].ask(AskPublicKey()).public, scheme="bfv", use="sums")
    values = {name: torch.full((3,), float(k)) for k, name in enumerate(("ada", "bob", "cyd"))}
    sent = {
        name: Organisation.at(name, BATCHES).outbox.encrypt(x, "distances", "train/0/0", key=public)
        for name, x in values.items()
    }
    adder = Organisation.at("adder", BATCHES)
    total = adder.outbox.pass_on(public.add(*(one.encrypted for one in sent.values())), "total", "train/0/0")
    opened = peers["keys"].ask(Open(total, "train/0/0")).values
    assert torch.allclose(opened.tensor, torch.full((3,), 3.0, dtype=torch.float64), atol=3 * public.error)
    single = adder.outbox.pass_on(sent["bob"].encrypted, "total", "train/0/0")
    with pytest.raises(PartyError, match="it opens totals of 2 or more parties, and this is of 1"):
        peers["keys"].ask(Open(single, "train/0/0"))
    ledger = [(e.direction, e.name, e.event) for e in server.ledger.entries]
    assert ("in", "total", "encrypted (bfv)") in ledger
    assert ("out", "public_key", "public") in ledger
    assert ("out", "total", "non-private") in ledger
    assert server.state() == {}
