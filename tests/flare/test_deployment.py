"""The whole way between organisations that share nothing but a slow network: what
`docs/how-to-deploy.md` says.

A namespace each, with an address and 50 ms to the relay; provision, start, count,
select, run, explain, audit, predict, serve. Every kind of process is killed and comes
back, one organisation joins late, a certificate is revoked, and what the relay
remembers and stores is searched for what only its parties may know.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federation.small import frames, quick, with_models, write
from tests.flare.apart import HOST, Apart, can_be_made, end, of_kit, remembers, until

from colonnade.explain import explain
from colonnade.federation import Federation, Settings, load
from colonnade.federation.choosing import choose
from colonnade.flare.deployed import _store_in
from colonnade.settings.party_file import write_table
from colonnade.settings.toml_text import to_toml
from colonnade.transport.identity import certified

PARTIES = ("clinic", "lab", "bank")
EVERY = (*PARTIES, "aggregation_server", "key_server")
SECRET = f"zq{secrets.token_hex(8)}"
"""In every id and label: no other process of this machine knows it."""
IDS = [f"{SECRET}P003", f"{SECRET}P017"]
EPOCHS = 12
SETTINGS = quick(
    data={"align": "private"},
    train={"epochs": EPOCHS, "early_stop": False},
    federation={"cohort": "off", "deadline": 60, "retries": 1},
    selection={"k": 3, "queries": 8, "scheme": "plain", "servers": True},
)


def tables() -> dict[str, pd.DataFrame]:
    """Of the clinic, the laboratory and the bank."""
    given = frames(rows=80)
    given["bank"] = (
        given["lab"]
        .rename(columns={"iron": "income", "zinc": "loans"})
        .sample(frac=1.0, random_state=1)
    )
    given["clinic"]["diagnosis"] = given["clinic"]["diagnosis"].map(
        lambda one: f"{SECRET}{one}"
    )
    for frame in given.values():
        frame["patient"] = [f"{SECRET}{one}" for one in frame["patient"]]
    return given


class Deployment:
    """Each organisation's folder, its site, and what the lead at the clinic orders."""

    def __init__(self, base: Path, apart: Apart) -> None:
        self.base = base
        self.apart = apart
        self.sites = dict[str, subprocess.Popen[Any]]()
        self.lead = base / "lead"

    def up(self, *names: str) -> None:
        for name in names:
            self.sites[name] = self.apart.start(
                name,
                ["bash", str(self.base / name / "startup" / "sub_start.sh")],
                self.base / name,
                "site",
            )

    def down(self, name: str) -> None:
        """Without a chance to say anything."""
        end(self.sites.pop(name))

    def order(self, *words: str) -> subprocess.Popen[Any]:
        command = [
            sys.executable,
            "-m",
            "colonnade",
            *words,
            "--engine",
            "flare",
            "--startup-kit",
            str(self.lead),
        ]
        return self.apart.start("clinic", command, self.base, words[0])

    def done(self, *words: str, code: int | None = 0) -> str:
        process = self.order(*words)
        found = process.wait(1200)
        said = self.apart.said(process)
        assert (found == code) if code is not None else found, (
            f"{' '.join(words)}: {found}\n{said}\n{self.why()}"
        )
        return said

    def why(self) -> str:
        return "\n".join(
            f"{path}: {path.read_text()}"
            for path in self.base.glob("*/runs/failed.json")
        )

    def of(self, name: str, *path: str) -> Path:
        return self.base.joinpath(name, "runs", *path)

    def trains(self, running: subprocess.Popen[Any], epochs: int) -> None:
        """Until so many are done."""
        until(
            lambda: self.epochs() >= epochs or running.poll() is not None,
            1200,
            f"{self.epochs()} of {epochs} epochs",
        )
        assert self.epochs() >= epochs, f"{self.apart.said(running)}\n{self.why()}"

    def epochs(self) -> int:
        metrics = self.of("clinic", "first", "metrics.jsonl")
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Deployment, Settings]]:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    if why := can_be_made():
        pytest.skip(f"no network namespaces without root here: {why}")
    base = tmp_path_factory.mktemp("deployed")
    settings = with_models(
        Settings.from_toml(write(base / "all", tables(), SETTINGS)), "seeded"
    )
    provision(base, settings, base / "kits")
    for name in EVERY:
        shutil.move(base / "kits" / "parties" / name, base / name)
    shutil.move(base / "kits" / "relay", base / "relay")
    shutil.move(base / "kits" / "lead", base / "lead")
    _store_in(base / "relay")
    for name in PARTIES:
        own = base / name / "local" / "party.toml"
        write_table(own, "selections", {"queries": 8})
        write_table(own, "audit", {"tell": "figures" if name == "lab" else "nothing"})
    for name in EVERY:
        own = base / name / "local" / "party.toml"
        command = [sys.executable, "-m", "colonnade", "site", "init", str(own)]
        subprocess.run(command, check=True, capture_output=True)
    write_table(base / "clinic" / "local" / "party.toml", "serve", {"port": 8080})
    with Apart(base, EVERY) as apart:
        yield Deployment(base, apart), settings
    for left in (
        one for name in ("relay", *EVERY) for one in of_kit(base / name)
    ):  # FLARE's jobs, in sessions of theirs
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def provision(base: Path, settings: Settings, out: Path, *more: str) -> None:
    (base / "federation.toml").write_text(
        to_toml(settings.to_mapping()), encoding="utf-8"
    )
    command = [
        sys.executable,
        "-m",
        "colonnade",
        "provision",
        str(base / "federation.toml"),
        "--out",
        str(out),
    ]
    subprocess.run([*command, "--server", HOST, *more], check=True, capture_output=True)


def relay_knows_nothing(here: Deployment) -> None:
    """Neither in memory nor on disk; that the search would find it, the laboratory's
    site shows."""
    assert of_kit(here.base / "relay")
    assert not [
        one for one in of_kit(here.base / "relay") if remembers(one, SECRET.encode())
    ]
    stored = [path for path in (here.base / "relay").rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if SECRET.encode() in path.read_bytes()]


@pytest.mark.long
def test_the_whole_way_between_organisations(made: tuple[Deployment, Settings]) -> None:
    here, settings = made
    file = here.base / "all" / "federation.toml"
    here.up("relay", "clinic", "lab", "aggregation_server", "key_server")

    counting = here.order("align", str(file), "--count", "--out", "runs/count")
    until(
        lambda: "Waiting for 'bank'" in here.apart.said(counting),
        1200,
        "nobody waits for the bank",
    )
    here.up("bank")  # it joins late
    assert counting.wait(1200) == 0, f"{here.apart.said(counting)}\n{here.why()}"
    assert (
        json.loads(here.of("clinic", "count", "alignment.json").read_text())[0][
            "common"
        ]
        == 80
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "plain"
        same = choose(settings, 1)
    here.done("select", str(file), "--keep", "1", "--out", "runs/choice")
    assert (
        json.loads(here.of("clinic", "choice", "selection.json").read_text())["scores"]
        == same.scores
    )

    killed_and_resumed(here, file)
    one = Federation.from_toml(file).fit(here.base / "one").summary
    summary = json.loads(here.of("clinic", "first", "summary.json").read_text())
    assert summary["metrics"] == one["metrics"]

    here.done("explain", "runs/first")
    found = json.loads(
        here.of("clinic", "first", "explain", "explain.json").read_text()
    )
    assert (
        found["measures"]["permutation"]
        == explain(load(here.base / "one")).measures["permutation"]
    )

    here.done("audit", "runs/first", "--rows", "16")
    told = json.loads(here.of("clinic", "first", "audit", "audit.json").read_text())
    assert told["sites"] == {"lab": "told its figures", "bank": "not told"}
    assert {one["victim"] for one in told["findings"]} == {"clinic", "lab"}
    for name in PARTIES:
        assert (
            "What attacks could learn"
            in here.of(name, "first", "report.html").read_text()
        )

    asked(here, IDS, "new.csv")
    predicted = pd.read_csv(here.of("clinic", "first", "predictions", "new.csv"))
    assert predicted["prediction"].tolist() == list(
        load(here.base / "one", ids=IDS).predict(IDS).labels
    )


@pytest.mark.long
def test_a_service_answers_where_it_listens_and_a_revoked_certificate_opens_nothing(
    made: tuple[Deployment, Settings],
) -> None:
    """After the run of the test above."""
    here, settings = made
    served(here, IDS)
    relay_knows_nothing(here)
    revoked(here, settings, IDS)


def asked(here: Deployment, ids: list[str], name: str, code: int | None = 0) -> str:
    rows = here.of("clinic", "first", "rows", name)
    rows.parent.mkdir(exist_ok=True)
    pd.DataFrame({"patient": ids}).to_csv(rows, index=False)
    return here.done("predict", "runs/first", "--rows", name, code=code)


def killed_and_resumed(here: Deployment, file: Path) -> None:
    """A site, the relay and the driver's site die while they train, each without a
    word; the run goes on each time."""
    words = ["run", str(file), "--out", "runs/first"]
    for victim in ("lab", "relay", "clinic"):
        before = here.epochs()
        running = here.order(*words)
        here.trains(running, before + 2)
        if victim == "lab":
            relay_knows_nothing(here)
            assert [
                one
                for one in of_kit(here.base / "lab")
                if remembers(one, SECRET.encode())
            ]
        here.down(victim)
        # a job ends with a site's process, and the lead hears of it
        if victim == "lab":
            assert running.wait(1200)
        else:  # whom nobody can tell: whoever waits there gives up
            end(running, signal.SIGINT)
        for name in set(here.sites) if victim == "relay" else ():
            # as if all were started anew: FLARE's sites find a new relay by themselves
            # in minutes
            here.down(name)
        here.up(victim, *(EVERY if victim == "relay" else ()))
        words = ["run", str(file), "--out", "runs/first", "--resume"]
    here.done(*words)
    assert here.epochs() == EPOCHS


def served(here: Deployment, ids: list[str]) -> None:
    serving = here.order("serve", "runs/first")
    answers = here.of("clinic", "first", "serve.json")
    until(answers.exists, 1200, f"{here.apart.said(serving)}\n{here.why()}")
    url = json.loads(answers.read_text().splitlines()[0])["url"]
    body = json.dumps({"ids": ids})
    ask = (
        "import sys, urllib.request as r; print(r.urlopen(r.Request(sys.argv[1],"
        " sys.argv[2].encode(), {'Content-Type': 'application/json'}),"
        " timeout=60).read().decode())"
    )
    asking = here.apart.start(
        "clinic",
        [sys.executable, "-c", ask, f"{url}/predict", body],
        here.base,
        "client",
    )
    assert asking.wait(600) == 0, here.apart.said(asking)
    assert all(one in here.apart.said(asking) for one in ids)
    elsewhere = here.apart.start(
        "lab", [sys.executable, "-c", ask, f"{url}/predict", body], here.base, "client"
    )
    assert elsewhere.wait(600) != 0  # it listens on the clinic's own machine
    end(serving, signal.SIGINT)


def revoked(here: Deployment, settings: Settings, ids: list[str]) -> None:
    """The bank's key is lost: it gets another certificate, and whoever pins that one
    refuses the old."""
    provision(
        here.base,
        settings,
        here.base / "kits-2",
        "--state",
        str(here.base / "kits" / "state"),
        "--renew",
        "bank",
    )
    new = here.base / "kits-2" / "parties" / "bank" / "startup"
    pins = {
        name: certified(new if name == "bank" else here.base / name / "startup")[1]
        for name in EVERY
    }
    for name in ("clinic", "lab"):
        others = {one: pin for one, pin in pins.items() if one != name}
        write_table(here.base / name / "local" / "party.toml", "peers", others)
    asked(here, ids, "revoked.csv", code=None)
    assert "certificate of 'bank'" in here.why()
    here.down("bank")
    shutil.rmtree(here.base / "bank" / "startup")
    shutil.copytree(new, here.base / "bank" / "startup")
    here.up("bank")
    asked(here, ids, "again.csv")
