"""The core: messages, outboxes, parties, peers, batches, ledgers, the wire. Needs torch
and numpy alone.

Names are imported on first use, so that what needs no torch, as checking a file, does
not wait for it.
"""

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use

if TYPE_CHECKING:
    from colonnade.core import roles
    from colonnade.core.batches import Agreed, Batch, Batches, Rounds, Rows, Step
    from colonnade.core.cipher import Ciphertext, Encrypted
    from colonnade.core.files import mapped_zeros
    from colonnade.core.ledger import Entry, Ledger
    from colonnade.core.message import Done, Message, Request
    from colonnade.core.outbox import Outbox
    from colonnade.core.party import Organisation, Party, State, serves
    from colonnade.core.peers import Peer, Peers, Transport
    from colonnade.core.receipt import NON_PRIVATE, DpEvent, Receipt
    from colonnade.core.release import (
        Codec,
        Identity,
        Mechanism,
        Packed,
        Plain,
        Released,
        Rule,
    )
    from colonnade.core.transcript import Transcript
    from colonnade.core.wire import Envelope
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "batches Agreed Batch Batches Rounds Rows Step",
        "cipher Ciphertext Encrypted",
        "files mapped_zeros",
        "ledger Entry Ledger",
        "message Done Message Request",
        "party Organisation Party State serves",
        "receipt NON_PRIVATE DpEvent Receipt",
        "outbox Outbox",
        "release Codec Identity Mechanism Packed Plain Released Rule",
        "peers Peer Peers Transport",
        "transcript Transcript",
        "wire Envelope",
        "roles",
    )

__all__ = [
    "NON_PRIVATE",
    "Agreed",
    "Batch",
    "Batches",
    "Ciphertext",
    "Codec",
    "Done",
    "DpEvent",
    "Encrypted",
    "Entry",
    "Envelope",
    "Identity",
    "Ledger",
    "Mechanism",
    "Message",
    "Organisation",
    "Outbox",
    "Packed",
    "Party",
    "Peer",
    "Peers",
    "Plain",
    "Receipt",
    "Released",
    "Request",
    "Rounds",
    "Rows",
    "Rule",
    "State",
    "Step",
    "Transcript",
    "Transport",
    "mapped_zeros",
    "roles",
    "serves",
]
