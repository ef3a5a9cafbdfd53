"""Startup kits: everybody gets their own certificate, the agreed file, and rules that
let nobody bring code."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.federation import small_multi
from tests.federation.small import frames, quick, write
from tests.federation.small_multi_sites import EVERY, private

from colonnade.errors import BoundaryError, ConfigError
from colonnade.federation import Settings
from colonnade.flare.job import ALLOWED
from colonnade.flare.provision import project_of, provision
from colonnade.settings.party_file import OWN, read_own

PORTS = {"server": "relay.example.org", "port": 8002, "admin_port": 8003}


def settings(tmp_path: Path) -> Settings:
    return Settings.from_toml(write(tmp_path / "all", settings=quick()))


def test_a_project_has_a_relay_a_site_per_party_and_one_who_starts_runs(
    tmp_path: Path,
) -> None:
    project = project_of(
        settings(tmp_path), server="relay.example.org", port=1, admin_port=2
    )
    kinds = [(one["type"], one["name"], one["org"]) for one in project["participants"]]
    assert kinds == [
        ("server", "relay.example.org", "relay"),
        ("client", "clinic", "clinic"),
        ("client", "lab", "lab"),
        ("admin", "lead@clinic.local", "clinic"),
    ]
    assert project["participants"][-1]["role"] == "lead"


def test_with_several_label_owners_the_lead_is_where_weights_are_added_up(
    tmp_path: Path,
) -> None:
    several = Settings.from_toml(small_multi.write(tmp_path / "all", private()))
    project = project_of(several, server="relay.example.org", port=1, admin_port=2)
    kinds = [(one["type"], one["name"]) for one in project["participants"]]
    sites = [("client", name) for name in EVERY]
    assert kinds == [
        ("server", "relay.example.org"),
        *sites,
        ("admin", "lead@aggregation-server.local"),
    ]


@pytest.mark.parametrize("server", ["", "two words", "https://relay", "-x", "a..b"])
def test_a_relay_needs_a_host_name(tmp_path: Path, server: str) -> None:
    with pytest.raises(ConfigError, match="--server must be a host name"):
        project_of(settings(tmp_path), server=server, port=1, admin_port=2)


@pytest.mark.parametrize("name", ["klinik-ä", "server", "relay"])
def test_a_site_needs_a_name_that_certificates_can_have(
    tmp_path: Path, name: str
) -> None:
    one = Settings.from_mapping({"parties": {name: {}, "clinic": {"label": "y"}}})
    with pytest.raises(ConfigError, match="A site's name has ASCII letters"):
        project_of(one, server="relay", port=1, admin_port=2)


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    base = tmp_path_factory.mktemp("provision")
    provision(
        settings(base), base / "kits", server="localhost", port=18002, admin_port=18003
    )
    return base / "kits"


def test_every_organisation_gets_its_own_kit_and_nobody_the_key_that_signs(
    kits: Path,
) -> None:
    assert sorted(path.name for path in kits.iterdir()) == [
        "lead",
        "parties",
        "project.yml",
        "relay",
        "state",
    ]
    keys = {path: path.read_text() for path in kits.rglob("*.key")}
    assert len(set(keys.values())) == len(keys) == 4
    for folder in ("state", "parties/lab", "parties/clinic"):
        assert stat.S_IMODE((kits / folder).stat().st_mode) == 0o700
    # from the first key on: it is the folder they were made in
    assert stat.S_IMODE(kits.stat().st_mode) == 0o700
    root = json.loads((kits / "state" / "cert.json").read_text())
    assert not any(
        root["root_pri_key"] in path.read_text()
        for path in (kits / "parties").rglob("*")
        if path.is_file()
    )


def test_a_kit_speaks_mutual_tls_and_has_the_organisations_files(kits: Path) -> None:
    client = json.loads(
        (kits / "parties" / "lab" / "startup" / "fed_client.json").read_text()
    )
    assert client["client"]["connection_security"] == "mtls"
    assert client["servers"][0]["service"]["target"] == "localhost:18002"
    own = read_own(kits / "parties" / "lab" / "local" / OWN)
    assert (own.name, own.driver, own.runs) == (
        "lab",
        "clinic",
        kits / "parties" / "lab" / "runs",
    )


@pytest.mark.parametrize("kit", ["relay", "parties/lab", "parties/clinic"])
def test_a_site_takes_no_code_names_only_two_classes_and_keeps_its_files_and_logs(
    kits: Path, kit: str
) -> None:
    local = kits / kit / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_allow_list"] == ALLOWED
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert not any("log" in one["id"] for one in resources["components"])
    permissions = json.loads((local / "authorization.json").read_text())["permissions"]
    assert list(permissions) == ["lead"]
    for right in ("byoc", "shell_commands", "operate", "download_job", "clone_job"):
        assert permissions["lead"][right] == "none", right


def test_kits_are_made_once(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not empty, and kits are made once"):
        provision(settings(tmp_path), kits, server="localhost")


def _certificate(kit: Path) -> bytes:
    """As it is shown to others."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from colonnade.transport.identity import read_certificate

    return read_certificate(kit / "startup" / "client.crt").public_bytes(Encoding.DER)


def test_a_new_organisation_and_a_renewed_certificate_are_of_the_same_root(
    kits: Path, tmp_path: Path
) -> None:
    """Both are taken by who has the old kit, and the old certificate is no longer whose
    fingerprint is pinned."""
    from colonnade.transport.identity import Identity, certified

    given = frames()
    given["bank"] = given["lab"].rename(columns={"iron": "income", "zinc": "loans"})
    more = Settings.from_toml(write(tmp_path / "all", given, quick()))
    provision(
        more, tmp_path / "kits", server="localhost", state=kits / "state", renew=["lab"]
    )
    for name in ("clinic", "lab"):
        before, after = (
            place / "parties" / name for place in (kits, tmp_path / "kits")
        )
        assert (_certificate(before) == _certificate(after)) == (name == "clinic")
        root = (place / "startup" / "rootCA.pem" for place in (before, after))
        assert len({one.read_bytes() for one in root}) == 1
    old = Identity.load(kits / "parties" / "clinic" / "startup", "clinic", {})
    for name in ("lab", "bank"):
        old.check(name, _certificate(tmp_path / "kits" / "parties" / name))
    _, renewed = certified(tmp_path / "kits" / "parties" / "lab" / "startup")
    pinned = Identity.load(
        kits / "parties" / "clinic" / "startup", "clinic", {"lab": renewed}
    )
    with pytest.raises(BoundaryError, match="has the fingerprint"):
        pinned.check("lab", _certificate(kits / "parties" / "lab"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"renew": ["lab"]}, "--renew needs --state"),
        ({"state": Path("nowhere")}, "has no cert.json"),
        (
            {"renew": ["nobody"], "state": Path("state")},
            "there is no such certificate in .*; there are clinic, ",
        ),
    ],
)
def test_earlier_kits_must_be_there_and_know_who_renews(
    kits: Path, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if "state" in more:
        more = more | {"state": kits / more["state"]}
    with pytest.raises(ConfigError, match=words):
        provision(settings(tmp_path), tmp_path / "kits", server="localhost", **more)
    assert not (tmp_path / "kits").exists()
