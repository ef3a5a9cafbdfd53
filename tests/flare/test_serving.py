"""What a job that serves names: FLARE sees the same one call as in every job, and an
end that waits."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.federation.small_sites import folders, sites, trained

from colonnade.runs.layout import FAILURE

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: the extra flare")


def test_flare_sees_one_published_call_and_an_end() -> None:
    from nvflare.collab.api.decorators import (
        get_object_final_funcs,
        get_object_init_funcs,
        get_object_publish_interface,
    )

    from colonnade.flare.job import SERVING
    from colonnade.flare.serving import ServingMember

    member = ServingMember()
    assert list(get_object_publish_interface(member).to_dict()) == ["call"]
    assert [name for name, _ in get_object_init_funcs(member)] == ["start"]
    assert [name for name, _ in get_object_final_funcs(member)] == ["end"]
    assert f"{ServingMember.__module__}.{ServingMember.__name__}" == SERVING


def test_without_serve_in_its_own_file_the_job_fails_and_says_why(
    tmp_path: Path,
) -> None:
    from colonnade.flare.serving import ServingMember

    folders(tmp_path)
    member = ServingMember().member
    member._drive(sites(tmp_path)["clinic"], {"run": "run", "serve": True})
    assert member.state == b"failed (ConfigError)"
    assert (
        "has no [serve]"
        in json.loads((tmp_path / "clinic" / "runs" / FAILURE).read_text())["message"]
    )


def test_when_the_job_ends_the_service_ends_and_is_waited_for(tmp_path: Path) -> None:
    from colonnade.flare.members import DONE
    from colonnade.flare.serving import ServingMember
    from colonnade.settings.party_file import OWN, write_table

    run = trained(tmp_path)
    write_table(tmp_path / "clinic" / OWN, "serve", {"port": 0})
    serving = ServingMember()
    member = serving.member
    member.site = sites(tmp_path)["clinic"]
    arguments = (member.site, {"run": "run", "serve": True})
    member.thread = threading.Thread(target=member._drive, args=arguments, daemon=True)
    member.thread.start()
    while member.thread.is_alive() and not (run / "serve.json").exists():
        member.thread.join(0.02)
    serving.end()
    assert not member.thread.is_alive()
    assert member.state == DONE
    assert not (run / "serve.json").exists()
