"""What an organisation remembers: one SQLite file, `state.db`, that cannot forget
unnoticed.

A budget is a promise over years: over many runs, processes, backups and mistakes. The
store keeps what the promise depends on (who people are, how often each was released and
how, what their rows were used for, which labels were drawn), and beside it the day's
allowances, orders that were taken, the organisation's own side of the ledger, calls that
were refused, and the index of runs. Tensors are not in it.

    FOLDER/state.db            the log, and -wal and -shm while it is open
    FOLDER/lock                held for the time of each transaction; nothing else opens it
    FOLDER/witnesses/          what this organisation keeps of the stores of others
    FOLDER.anchor/mark         the newest witness of this store, forced onto the disk
    FOLDER.anchor/key.pem      the key that signs witnesses

What must always hold:

1. *A release is one transaction.* `SiteStore.release` looks at what the people of the
   release have paid, refuses, or writes the release down; it returns when that is on
   the disk in two places. Only then may the tensor leave. So the independent count of
   what left is never above what the store says, whatever is killed whenever.
2. *There is one log, and one hash chain over it.* Every change of any kind is an entry
   with a serial and `chain = H(chain before, serial, kind and content)`. All that the
   store knows follows from its entries. They are checked when the store is opened, from
   the newest signed checkpoint on, and all of them by `verify`.
3. *An older copy is noticed.* Before a release leaves, its witness (store, serial,
   charges, chain, signed with Ed25519) is in the anchor, and it leaves with each
   counted reply for others to keep (`Keeper`). A store that is behind a witness of its
   own, or has another chain at its serial, is refused. Keepers check the signature,
   never go back, and refuse another history. No witness means unknown, and not fine.
4. *Nothing is made by default.* `create` makes a store, all of it or none; `open` makes
   nothing. The first contact with people, another column that names them, and many
   unknown people need the owner's `Word`.
5. *Whoever counts, counts for all.* Several processes may share a store. Each
   transaction holds the lock, takes in what others wrote, and compares the process, the
   files' inodes and the serial first. A file system whose locks keep nobody out is
   refused.
6. *Counting never stops.* It does not depend on there being a limit: limits only decide
   what is refused.
7. *There is a way out.* `recover` charges everybody for what is missing, by the dearest
   rule, and writes down that it did, so that old witnesses are content. `exhaust` ends
   all releases. `backup` writes a copy, which is put back by `recover`.

What it protects against: accidents of files (lost, cut, flipped, put back, copied
without their companions, renamed, on a full disk), crashes and power cuts, two processes
at once, and an operator who restores or deletes without thinking. An owner who forges
its own store on purpose can do so as long as no other organisation keeps a witness; from
then on it can neither go back nor tell two histories. What it does not protect: secrets
in the file from who can read the owner's disk.

It stands on its own: standard library, numpy and cryptography, nothing else of this
package but its errors.
"""

from __future__ import annotations

from colonnade.store.counts import Item, Way
from colonnade.store.identifiers import canonical_id, check_name, is_file_name
from colonnade.store.keeper import Keeper
from colonnade.store.labels import LabelColumn
from colonnade.store.recovery import Recovery, recover
from colonnade.store.site_store import (
    DrawnLabels,
    Grant,
    Receipt,
    Release,
    SiteStore,
    Word,
)
from colonnade.store.witness import Witness

__all__ = [
    "DrawnLabels",
    "Grant",
    "Item",
    "Keeper",
    "LabelColumn",
    "Receipt",
    "Recovery",
    "Release",
    "SiteStore",
    "Way",
    "Witness",
    "Word",
    "canonical_id",
    "check_name",
    "is_file_name",
    "recover",
]
