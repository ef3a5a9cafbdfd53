"""The core: messages, outboxes, parties, peers, batches, ledgers, the wire. Needs torch and numpy alone."""

from colonnade.core import mapped, roles
from colonnade.core.batches import Agreed, Batch, Batches, Rounds, Rows, Step
from colonnade.core.cipher import Ciphertext, Encrypted
from colonnade.core.ledger import Entry, Ledger
from colonnade.core.message import Done, Message, Request
from colonnade.core.party import Organisation, Party, State, serves
from colonnade.core.peers import Peer, Peers, Transport
from colonnade.core.receipt import NON_PRIVATE, DpEvent, Receipt
from colonnade.core.release import Codec, Identity, Mechanism, Outbox, Packed, Plain, Released, Rule
from colonnade.core.transcript import Transcript
from colonnade.core.wire import Envelope

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
    "mapped",
    "roles",
    "serves",
]
