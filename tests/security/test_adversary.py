"""Four adversaries that try at random: a relay, a driver, a candidate who is no party
of it, and a client.

Each plays against sites with certificates and a run that they trained. `make test` lets
each try a few dozen times; `python -m tests.attack --attempts 500 --seed 7` as often as
it is told, and prints what came of it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import frames, quick
from tests.federation.small_sites import folders, sites
from tests.fuzz.corpus import corpus
from tests.fuzz.mutate import frame_of, mutated, parts_of

pytest.importorskip("httpx", reason="httpx is not installed")

from tests.security.test_relay import Relay, same, small
from tests.serving.test_site_service import TOKEN, allowed, serving

from colonnade.core import wire
from colonnade.core.failure import Failure
from colonnade.federation.guarantees import of_run
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive
from colonnade.sites.site import Site
from colonnade.transport.channel import CALL, FINISH, HELLO, REFUSED
from colonnade.transport.remote import ANSWER, HEAD, NONE, WHOLE

ATTEMPTS = int(os.environ.get("COLONNADE_ATTEMPTS", "60"))
SEED = int(os.environ.get("COLONNADE_SEED", "1"))
Record = Callable[[str, object], None]
BUDGET = 8.0
NUMBERS = itertools.count(1 << 40)
IDS = [f"P{number:03}" for number in range(80)]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(scope="module")
def frames_of_every_kind() -> list[bytes]:
    return corpus(encrypted=False, recorded=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clinic and the laboratory, which counts what its rows are released with,
    after a run."""
    base = tmp_path_factory.mktemp("trained")
    rule = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 20.0}}
    lab = {"outbox": {"embedding": rule}, "budget": {"epsilon": BUDGET, "delta": 1e-5}}
    folders(
        base,
        settings={
            **quick(federation={"device": "cpu", "cohort": "off"}),
            "parties": {"lab": lab},
        },
    )
    drive(sites(base)["clinic"], "run")
    return base


def files_of(base: Path, name: str) -> dict[str, str]:
    """What a site has trained and promised; its logs and stores grow."""
    kept = (base / name / "runs" / "run").rglob("*")
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in kept
        if path.is_file() and path.suffix in (".json", ".safetensors", ".toml")
    }


def answer_of(site: Site, caller: str, frame: bytes) -> Any:
    """What comes back: a message, as the line would bring it."""
    reply = site.endpoint(caller, HEAD.pack(WHOLE, NONE, 0, 0) + frame)
    return (
        wire.decode(memoryview(bytearray(reply[len(ANSWER) :]))).message
        if reply.startswith(ANSWER)
        else None
    )


def named(frame: bytes, sender: str) -> bytes:
    """The same frame, in this name and under a number that nobody used."""
    parts = parts_of(frame)
    return (
        frame
        if parts is None
        else frame_of(parts[0] | {"from": sender, "number": next(NUMBERS)}, parts[1])
    )


def spent(base: Path) -> float:
    """What the laboratory's store says that its row that paid most has paid."""
    told = [
        one.to_json()["budget"]
        for one in of_run(RunDirectory(base / "lab" / "runs" / "run"))
    ]
    return max(float(one["spent"]) for one in told if one)


def test_a_relay_that_tries_at_random_is_refused(
    tmp_path: Path, rng: random.Random, record_property: Record
) -> None:
    """Bits, cuts, splices, older calls, answers as calls and calls in the clear, before
    every call of a run."""
    got = Counter[bytes]()
    per_call = 1 + ATTEMPTS // 10

    def forged(relay: Relay, data: bytes) -> bytes:
        seen = [
            part
            for pair in relay.seen
            for part in pair
            if part[:1] not in (HELLO, FINISH)
        ] or [data]
        old = rng.choice(seen)
        at = rng.randrange(len(data))
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(8)
        if flipped[:1] in (HELLO, FINISH):
            flipped[:1] = CALL
        return rng.choice(
            [
                bytes(flipped),
                data[:at] if at else CALL,
                data + rng.randbytes(1 + at),
                CALL + old[1:],
                CALL + data[1 : 1 + at] + old[1 + at :] + b"\0",
                CALL + rng.randbytes(at),
                rng.choice(relay.plain or [b""]),
                CALL + data[1:17] + rng.choice(relay.plain or [b""]),
            ]
        )

    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        if data[:1] == CALL:
            for _ in range(per_call):
                fake = forged(relay, data)
                if fake not in (data, data[:1]):
                    got[carry(fake)[:1]] += 1
        return carry(data)

    for place in ("honest", "attacked"):
        (tmp_path / place).mkdir()
    relay = Relay(small(tmp_path / "attacked"), attack)
    same(relay.train(), Relay(small(tmp_path / "honest")).train())
    record_property("attempts", got.total())
    assert got.total() >= min(ATTEMPTS, 60)
    assert set(got) == {REFUSED}
    assert len(relay.plain) == 2 * sum(data[:1] == CALL for data, _ in relay.seen), (
        "it opened what the clinic sent"
    )


def test_a_driver_that_tries_at_random_gets_no_more_than_budget_and_deletes_nothing(
    trained: Path,
    rng: random.Random,
    frames_of_every_kind: list[bytes],
    record_property: Record,
) -> None:
    """The label owner, with its own key: requests of every class, whole and changed,
    for runs that are and are not."""
    lab = sites(trained)["lab"]
    before = files_of(trained, "lab")
    ends = Counter[str]()
    for number in range(ATTEMPTS):
        frame = (
            rng.choice(frames_of_every_kind)
            if number % 2
            else mutated(rng, frames_of_every_kind)
        )
        parts = parts_of(named(frame, "clinic"))
        if parts is not None and isinstance(parts[0].get("fields"), dict):
            fields = parts[0]["fields"]
            chosen = {
                "run": rng.choice(["run", "../run", "new", ""]),
                "resume": rng.random() < 0.5,
                "number": number % 4,
            }
            fields |= {key: value for key, value in chosen.items() if key in fields}
        answer = answer_of(lab, "clinic", frame if parts is None else frame_of(*parts))
        ends[answer.error if isinstance(answer, Failure) else "answered"] += 1
        if isinstance(answer, Failure):
            assert not any(word in answer.cause for word in (*IDS, str(trained))), (
                answer
            )
    record_property("attempts", ATTEMPTS)
    assert sum(ends.values()) == ATTEMPTS
    assert ends["answered"] < ATTEMPTS
    assert files_of(trained, "lab") == before
    assert spent(trained) <= BUDGET


@pytest.mark.parametrize("who", ["stranger", "lab"])
def test_a_candidate_that_is_no_party_or_another_is_told_nothing(
    trained: Path,
    rng: random.Random,
    frames_of_every_kind: list[bytes],
    record_property: Record,
    who: str,
) -> None:
    """Somebody with a certificate of the same root, and the laboratory, which has
    nothing to ask of the label owner."""
    clinic = sites(trained)["clinic"]
    before = files_of(trained, "clinic")
    ends = Counter[str]()
    for number in range(ATTEMPTS):
        frame = named(rng.choice(frames_of_every_kind), rng.choice(["clinic", who]))
        answer = answer_of(clinic, who, mutated(rng, [frame]) if number % 2 else frame)
        ends[type(answer).__name__] += 1
        if not isinstance(answer, Failure):
            assert answer is not None
            assert not list(answer.released()), answer
    record_property("attempts", ATTEMPTS)
    assert files_of(trained, "clinic") == before
    if who == "stranger":
        assert set(ends) == {"Failure"}


def hostile_requests(rng: random.Random) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Whether it brings the token, and what it asks."""
    odd = [
        "",
        "\0",
        "x" * 3000,
        "../../etc/passwd",
        "P001'; DROP",
        "=1+1",
        "P999",
        "\ud7ff",
        "{}",
        "nan",
    ]
    bodies: list[Any] = [
        {"ids": [rng.choice(odd)]},
        {"ids": rng.choice(odd)},
        {"ids": [[["P001"]]]},
        {"ids": [None]},
        [],
        {"id": ["P001"]},
        {"ids": [{"P001": 1}]},
        {"ids": ["P001"] * 5000},
        {"ids": [10**400]},
        {"ids": []},
    ]
    while True:
        trusted = rng.random() < 0.5
        token = (
            TOKEN
            if trusted
            else rng.choice(["x", TOKEN[:-1], TOKEN + "x", "null", TOKEN.upper()])
        )
        asked: dict[str, Any] = {
            "method": "POST",
            "url": "/predict",
            "headers": {"Authorization": f"Bearer {token}"},
        }
        kind = rng.randrange(5)
        if kind == 0:
            asked["content"] = rng.randbytes(rng.randrange(2000))
        elif kind == 1:
            asked["content"] = b'{"ids": ' + b"[" * rng.choice([10, 100_000])
        elif kind == 2:
            asked |= {
                "method": rng.choice(["PUT", "DELETE", "PATCH", "GET"]),
                "url": rng.choice(["/predict", "/x", "/%2e%2e/"]),
            }
        elif kind == 3 and not trusted:
            asked["json"] = {"ids": [rng.choice(IDS)]}
        else:
            asked["json"] = rng.choice(bodies)
        yield trusted, asked


def test_a_client_that_tries_at_random_gets_errors_that_say_nothing(
    trained: Path, rng: random.Random, record_property: Record
) -> None:
    allowed(trained, limit=200, rate=100_000)
    honest = None
    with serving(trained) as (client, _):
        client.headers.pop("Authorization")
        for _, (trusted, asked) in zip(
            range(ATTEMPTS), hostile_requests(rng), strict=False
        ):
            answer = client.request(**asked)
            assert 400 <= answer.status_code < 500, (asked, answer.status_code)
            assert "error" in answer.json()
            assert not any(one in answer.text for one in IDS)
            assert trusted or answer.status_code in (401, 404, 405, 408, 413, 422, 429)
        good = client.post(
            "/predict",
            json={"ids": ["P003"]},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        honest = good.json()["predictions"][0]["prediction"]
    record_property("attempts", ATTEMPTS)
    assert honest in set(frames()["clinic"]["diagnosis"].astype(str))
