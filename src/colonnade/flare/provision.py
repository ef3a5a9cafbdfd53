"""Startup kits for a federation of organisations: certificates, addresses, and what
each site lets a job do.

    DIR/project.yml          FLARE's project file
    DIR/state/               FLARE's root certificate with its key: whoever has it can make sites; keep it, show nobody
    DIR/relay/               for the machine that relays; it holds no data and no key of the others
    DIR/parties/NAME/        for one organisation: startup/ (its certificate), local/ (its rules)
    DIR/lead/                for whoever starts runs, at the label owner (at the aggregation server, where several are)

A site takes jobs of the lead alone, that bring no code and name no other classes than
Colonnade's two; nobody can read its files from afar, and its logs stay with it. These
rules lie in the organisation's own folder `local`; it may tighten them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from colonnade.core.files import replaced_folder
from colonnade.errors import ConfigError
from colonnade.flare.job import ALLOWED, require
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import all_sites, driver_of, write_agreed, write_own

STATE = "cert.json"
SITE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
HOST = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
)
BUILDERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
    ("static_file.StaticFileBuilder", {"config_folder": "config"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)
MAY = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}
NOT = (
    "clone_job",
    "download_job",
    "operate",
    "shell_commands",
    "byoc",
    "server-predeployed-flwr",
)


def project_of(
    settings: Settings, *, server: str, port: int, admin_port: int
) -> dict[str, Any]:
    """FLARE's project: one relay, a site per party (and per server of selections), and
    a lead at the label owner."""
    from colonnade.flare.orders import lead_of
    from colonnade.transport.identity import LEAD

    driver = driver_of(settings)
    if not HOST.fullmatch(server):
        raise ConfigError(
            f"--server must be a host name that all sites can reach; found {server!r}."
        )
    names = all_sites(settings)
    for name in names:
        if not SITE_NAME.fullmatch(name) or name in (server, "server"):
            raise ConfigError(
                "A site's name has ASCII letters, digits, '-' and '_', and is not the"
                f" relay's; found {name!r}."
            )
    organisation = {name: name.replace("-", "_") for name in names}
    participants: list[dict[str, Any]] = [
        {
            "name": server,
            "type": "server",
            "org": "relay",
            "fed_learn_port": port,
            "admin_port": admin_port,
        },
        *(
            {"name": name, "type": "client", "org": organisation[name]}
            for name in names
        ),
        {
            "name": lead_of(driver),
            "type": "admin",
            "org": organisation[driver],
            "role": LEAD,
        },
    ]
    builders = [
        {"path": f"nvflare.lighter.impl.{path}", "args": args}
        for path, args in BUILDERS
    ]
    head = {
        "api_version": 3,
        "name": "colonnade",
        "description": "A federation of Colonnade",
    }
    return head | {"participants": participants, "builders": builders}


def provision(
    settings: Settings,
    out: Path,
    *,
    server: str,
    port: int = 8002,
    admin_port: int = 8003,
    state: Path | None = None,
    renew: Collection[str] = (),
) -> None:
    """Make all kits, in a folder that appears whole or not at all. With the `state` of
    earlier kits they have the same root: who was there keeps its certificate, unless it
    is to `renew` it, and who is new gets one that all others take.
    """
    require()
    from nvflare.lighter.provision import (
        prepare_builders,
        prepare_packager,
        prepare_project,
    )
    from nvflare.lighter.provisioner import Provisioner

    if out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out} is not empty, and kits are made once. Choose another folder."
        )
    project = project_of(settings, server=server, port=port, admin_port=admin_port)
    known = _known(
        state,
        [str(participant["name"]) for participant in project["participants"]],
        renew,
    )
    # keys are made in it, and whoever has the root's makes sites
    with replaced_folder(out, mode=0o700) as fresh:
        # JSON is YAML
        (fresh / "project.yml").write_text(
            json.dumps(project, indent=2) + "\n", encoding="utf-8"
        )
        if known:
            kept = fresh / "made" / str(project["name"]) / "state"
            kept.mkdir(parents=True)
            (kept / STATE).write_text(json.dumps(known), encoding="utf-8")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            maker = Provisioner(
                str(fresh / "made"),
                prepare_builders(project),
                prepare_packager(project),
            )
            # which takes its argument apart
            context = maker.provision(prepare_project(copy.deepcopy(project)))
        if context.get("build_error"):
            raise ConfigError(
                f"FLARE could not make the startup kits: {context.get('errors')}"
            )
        _arrange(fresh, settings, project)


def _known(
    state: Path | None, names: Collection[str], renew: Collection[str]
) -> dict[str, Any]:
    """The root and the certificates of earlier kits, without those to renew."""
    if state is None:
        if renew:
            raise ConfigError(
                "--renew needs --state DIR, the folder state/ of the kits whose"
                " certificates it renews."
            )
        return {}
    try:
        known: dict[str, Any] = json.loads((state / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(
            f"{state} has no {STATE} that can be read. --state is the folder state/"
            " that `colonnade provision` made."
        ) from None
    for name in renew:
        if name not in names or name not in known:
            there = ", ".join(sorted(name for name in names if name in known))
            raise ConfigError(
                f"--renew {name}: there is no such certificate in {state}; there are"
                f" {there}."
            )
    return {
        name: certificate for name, certificate in known.items() if name not in renew
    }


def _arrange(fresh: Path, settings: Settings, project: Mapping[str, Any]) -> None:
    kits = fresh / "made" / str(project["name"])
    (fresh / "parties").mkdir()
    for participant in project["participants"]:
        kit = kits / "prod_00" / participant["name"]
        kind = {"server": "relay", "admin": "lead"}.get(
            participant["type"], f"parties/{participant['name']}"
        )
        kit.rename(fresh / kind)
        if kind == "lead":
            write_agreed(fresh / kind, settings)
        else:
            _restrict(fresh / kind / "local")
        if participant["type"] == "client":
            local = fresh / kind / "local"
            write_agreed(local, settings)
            write_own(local, settings, participant["name"], runs=Path("../runs"))
            (fresh / kind).chmod(0o700)
    (kits / "state").rename(fresh / "state")
    (fresh / "state").chmod(0o700)
    shutil.rmtree(fresh / "made")


def _restrict(local: Path) -> None:
    """The site's own rules, which stand above FLARE's defaults."""
    resources = json.loads(
        (local / "resources.json.default").read_text(encoding="utf-8")
    )
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": ALLOWED,
        "allow_log_streaming": False,
    }
    kept = [
        part
        for part in resources["components"]
        if part["id"] not in ("site_log_streamer", "log_receiver")
    ]
    # FLARE's defaults send a site's error log to the relay
    resources["components"] = kept
    authorization = {
        "format_version": "1.0",
        "permissions": {"lead": MAY | dict.fromkeys(NOT, "none")},
    }
    for name, content in {
        "resources": resources,
        "authorization": authorization,
    }.items():
        (local / f"{name}.json").write_text(
            json.dumps(content, indent=2) + "\n", encoding="utf-8"
        )
