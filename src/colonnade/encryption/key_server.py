"""A key server: somebody without data who holds the secret key, for sums that nobody else may open.

    parties:            AskPublicKey -> Key;  encrypt, and send to whoever adds up
    whoever adds up:    Open(total) -> Opened

It opens totals only: a ciphertext must be the sum of at least `least` parties' values, by the bound that it carries.
That stops mistakes, not an aggregator who forges bounds: it and the key server must not work together against the
parties. Keys are BFV's, since what is opened is given away, and CKKS's decrypted numbers would tell about the key.
Where the one who may read the total is a party, it can make the keys itself and needs no server.
"""

from __future__ import annotations

from colonnade.core import Ciphertext, Message, Organisation, Released, Request, roles, serves
from colonnade.encryption import make_keys


class Key(Message):
    public: Released


class AskPublicKey(Request[Key]):
    """Anybody may ask."""


class Opened(Message):
    values: Released


class Open(Request[Opened]):
    total: Ciphertext
    batch: str | None = None


class KeyServer(roles.KeyServer):
    """Makes keys, gives the public one out, opens totals."""

    def __init__(self, organisation: Organisation, *, limit: float = 1024.0, least: int = 2) -> None:
        super().__init__(organisation)
        self.least, self._secret = least, make_keys("bfv", use="sums", limit=limit)

    @serves
    def ask_public_key(self, request: AskPublicKey) -> Key:  # noqa: ARG002
        return Key(self.outbox.publish(self._secret.public.to_bytes(), "public_key"))

    @serves
    def open(self, request: Open, asker: str | None) -> Opened:
        encrypted, limit = request.total.encrypted, self._secret.public.limit
        parties = round(encrypted.bound / limit)
        self.expect(parties >= self.least, f"it opens totals of {self.least} or more parties, and this is of {parties}")
        total = self._secret.decrypt(encrypted)
        return Opened(self.outbox.release(total, "total", request.batch, to=asker))
