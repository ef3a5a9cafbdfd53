"""What an organisation keeps of the stores of others: their newest witnesses.

A witness helps only where somebody else keeps it. So each counted reply carries one,
and whoever gets the reply keeps the witness before it uses the reply. A keeper checks
the signature by the key that it knows the owner by, and never goes back: a witness with
a smaller serial, or another history at the same one, shows that the owner's store is an
older copy, and is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colonnade.errors import StoreError
from colonnade.store.disk import force_folder, new_file
from colonnade.store.identifiers import check_name
from colonnade.store.locking import LockFile
from colonnade.store.marks import Mark, Slot
from colonnade.store.packing import to_json
from colonnade.store.witness import Witness, check_public_key

WITNESS_ENDING = ".witness"
KNOWN_ENDING = ".json"


@dataclass(frozen=True)
class KnownStore:
    """By what another organisation's store is known.

    Args:
        store: Its id.
        public_key: Checks its witnesses.
    """

    store: str
    public_key: str


class Keeper:
    """The witnesses that one organisation keeps of others.

    Args:
        folder: Where they lie.
        owner: Who keeps them, for errors.
        lock: The lock file of the owner's store.
    """

    def __init__(self, folder: Path, owner: str, lock: Path) -> None:
        self.folder = folder
        self.owner = owner
        self._lock = lock

    def meet(self, peer: str, public_key: str, first: Witness) -> None:
        """Begin to keep the witnesses of another organisation's store.

        Args:
            peer: The organisation.
            public_key: Checks its witnesses: it must come from the organisation
                itself, as certified by what it is known by otherwise.
            first: Its witness now.
        """
        check_name(peer, self.owner, "witness")
        check_public_key(public_key)
        now = KnownStore(first.store, public_key)
        self._check_signed(peer, first, now)
        with self._held():
            known = self.known_store(peer)
            if known is None:
                self._begin(peer, now, first)
            elif known != now:
                raise self._is_another(peer)
        self.keep(peer, first)

    def keep(self, peer: str, witness: Witness, *, is_forced: bool = True) -> None:
        """Keep a witness.

        Args:
            peer: The organisation.
            witness: Of its store.
            is_forced: Whether the witness is on the disk when this returns. Otherwise a
                process that is killed loses nothing, and a power cut may.

        Raises:
            StoreError: It is not by the organisation, or it shows that its store is an
                older copy. What came with it must not be used.
        """
        known = self._known_for(peer, witness)
        with self._held():
            kept = self._kept(peer, known)
            self._replace(peer, witness, kept, is_forced=is_forced)

    def advance(self, peer: str, witness: Witness, since: Witness | None) -> None:
        """Keep the witness of an answer, among answers that may overlap.

        An answer was made after its call, so its witness is not older than what was
        kept when the call was made. It may be older than what is kept now.

        Args:
            peer: The organisation.
            witness: What came with its answer, or with its call.
            since: What was kept when it was called. None where the organisation calls.

        Raises:
            StoreError: Its store is an older copy. What came with it must not be used.
        """
        known = self._known_for(peer, witness)
        with self._held():
            kept = self._kept(peer, known)
            if witness.serial >= kept.witness.serial:
                self._replace(peer, witness, kept, is_forced=False)
            elif since is not None and witness.serial < since.serial:
                raise self._is_older(peer, since, witness)

    def witness_of(self, peer: str) -> Witness | None:
        """The newest witness of another organisation's store. None means that nothing
        is known of it, and not that all is well."""
        known = self.known_store(peer)
        if known is None:
            return None
        return self._kept(peer, known).witness

    def known_store(self, peer: str) -> KnownStore | None:
        """By what an organisation's store is known. None before they met."""
        path = self.folder / f"{peer}{KNOWN_ENDING}"
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return KnownStore(fields["store"], fields["public_key"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} cannot be read ({type(error).__name__}): '{self.owner}' knows"
                f" the store of '{peer}' by it. Put it back from a copy."
            ) from None

    def forget(self, peer: str) -> None:
        """Know nothing of an organisation's store any more: the owner's own decision,
        for a peer that says that its store and key were lost."""
        for ending in (KNOWN_ENDING, WITNESS_ENDING):
            (self.folder / f"{peer}{ending}").unlink(missing_ok=True)
        force_folder(self.folder)

    def _begin(self, peer: str, known: KnownStore, first: Witness) -> None:
        """Write the witness first: what a crash leaves of it is not known, and begun
        anew."""
        mark = self._mark(peer)
        mark.path.unlink(missing_ok=True)
        Mark.create(mark.path, peer, first, has_entries=False)
        text = to_json({"store": known.store, "public_key": known.public_key})
        fresh = self.folder / f".{peer}.new"
        fresh.unlink(missing_ok=True)
        new_file(fresh, text.encode())
        fresh.replace(self.folder / f"{peer}{KNOWN_ENDING}")
        force_folder(self.folder)

    def _known_for(self, peer: str, witness: Witness) -> KnownStore:
        """By what a peer's store is known, where a witness is of that store."""
        known = self.known_store(peer)
        if known is None:
            raise StoreError(
                f"'{self.owner}' does not know the store of '{peer}', so it cannot"
                " check its witness. Meet it first."
            )
        if witness.store != known.store:
            raise self._is_another(peer)
        self._check_signed(peer, witness, known)
        return known

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Be the only one who keeps witnesses."""
        lock = LockFile(self._lock, self.owner)
        try:
            with lock.held():
                yield
        finally:
            lock.close()

    def _kept(self, peer: str, known: KnownStore) -> Slot:
        """The newest witness that is kept of a peer's store."""
        slot, _ = self._mark(peer).read(known.store, [known.public_key])
        return slot

    def _replace(
        self, peer: str, witness: Witness, kept: Slot, *, is_forced: bool
    ) -> None:
        """Keep a witness in the place of the one that is kept, unless it is older."""
        before = kept.witness
        if witness.serial == before.serial and witness.chain == before.chain:
            return
        if witness.serial <= before.serial or witness.charges < before.charges:
            raise self._is_older(peer, before, witness)
        mark = self._mark(peer)
        descriptor = mark.write(witness, None, after=kept)
        if is_forced:
            mark.force_and_close(descriptor)
        else:
            os.close(descriptor)

    def _mark(self, peer: str) -> Mark:
        return Mark(self.folder / f"{peer}{WITNESS_ENDING}", peer)

    def _check_signed(self, peer: str, witness: Witness, known: KnownStore) -> None:
        if not witness.is_signed_by([known.public_key]):
            raise StoreError(
                f"The witness that came for the store of '{peer}' is not signed by its"
                " key. Nothing of it is used."
            )

    def _is_older(self, peer: str, kept: Witness, shown: Witness) -> StoreError:
        return StoreError(
            f"The store of '{peer}' had come to entry {kept.serial}, as '{self.owner}'"
            f" keeps it, and now shows another history at entry {shown.serial}: it is"
            f" an older copy. Nothing of it is used. '{peer}' has to recover its store."
        )

    def _is_another(self, peer: str) -> StoreError:
        return StoreError(
            f"The store of '{peer}' is not the one that '{self.owner}' knows: it has"
            " another id or another key. It may have been lost and begun anew, with"
            f" nothing spent. '{peer}' has to recover it; if both say that it is lost,"
            f" forget what '{self.owner}' keeps of it."
        )
