"""The doctor tries what is installed, and says what is broken and how to mend it."""

from __future__ import annotations

import os
import resource
import sys
import time
import tomllib
from pathlib import Path

import pytest

from colonnade.installation import hint
from colonnade.planning import doctor
from colonnade.planning.doctor import Check, Package, Trouble, in_range, packages
from colonnade.privacy import accounting


def fails(check: object) -> Check:
    assert callable(check)
    found = doctor._checked("it", check)
    assert found.state == "failed"
    assert found.cure
    return found


def test_here_all_that_is_required_works_within_seconds() -> None:
    start = time.process_time()
    checks = list(doctor.examine())
    assert time.process_time() - start < 10
    assert doctor.healthy(checks)
    assert {
        "python",
        "libraries",
        "torch on cpu",
        "federation",
        "cryptography",
        "accounting",
        "clock",
        "disk",
    } <= {check.name for check in checks}
    assert all(check.found for check in checks)
    assert all(check.cure for check in checks if check.state != "ok")


def test_only_what_is_required_makes_it_ill() -> None:
    broken = Check("it", "failed", "no", "do", required=True)
    assert not doctor.healthy([broken])
    assert doctor.healthy(
        [
            Check("it", "failed", "no", "do", required=False),
            Check("it", "absent", "no", "do"),
        ]
    )


def test_a_cache_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert "to be made" in doctor.cache()
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot be written to" in fails(doctor.cache).found


def test_a_data_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    assert str(tmp_path) in doctor.data()
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path / "nowhere"))
    assert "no readable folder" in fails(doctor.data).found
    monkeypatch.delenv("COLONNADE_DATA")
    assert "not set" in doctor.data()


def test_too_few_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert fails(doctor.open_files).cure == "ulimit -n 4096"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    doctor.open_files()


def test_limits_on_disk_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 62)
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1 << 62)
    assert "free" in fails(doctor.disk).found
    assert "free" in fails(doctor.memory).found


def test_a_clock_before_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.clock()
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert "before this was installed" in fails(doctor.clock).found


def test_a_command_of_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "does not find" in fails(doctor.command).found
    other = tmp_path / "colonnade"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    if Path(sys.executable).with_name("colonnade").exists():
        assert "another installation" in fails(doctor.command).found


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(), raising=False)
    assert "OMP_NUM_THREADS" in fails(doctor.processor).cure


def test_an_extra_is_there_absent_old_or_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = [
        Package("no-such-package", ">=1", "none"),
        Package("torch", ">=99", "old"),
        Package("torch", ">=1", "broken"),
        Package("torch", ">=1", "here"),
        Package("torch", ">=1", "half"),
        Package("no-such-package", "", "half"),
    ]
    monkeypatch.setattr(doctor, "packages", lambda: wanted)

    def breaks() -> str:
        raise OSError("its library is gone\nand more")

    (none,), (old,), (half,) = (
        list(doctor._extra(extra, None)) for extra in ("none", "old", "half")
    )
    (broken,), (here,) = (
        list(doctor._extra("broken", breaks)),
        list(doctor._extra("here", lambda: "it works")),
    )
    assert (none.state, none.cure) == ("absent", hint("none"))
    assert (old.state, half.state, broken.state, here.state) == (
        "failed",
        "failed",
        "failed",
        "ok",
    )
    assert "no-such-package is missing" in half.found
    assert broken.found == "OSError: its library is gone"
    assert here.found.endswith("; it works")
    assert doctor.healthy([none, old, half, broken, here])


def test_old_libraries_are_named_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        doctor, "packages", lambda: [Package("torch", ">=99"), Package("numpy", ">=1")]
    )
    with pytest.raises(Trouble, match=r"torch .* \(>=99 is needed\)$"):
        doctor.libraries()


PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())[
    "project"
]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("2.13.0+cpu", ">=2.8,<3"),
        ("2.8", ">=2.8,<3"),
        ("3.0", ">=2.8,<3"),
        ("2.7.9", ">=2.8,<3"),
        ("0.6.0", ">=0.6,<0.7"),
        ("0.7.0", ">=0.6,<0.7"),
        ("21", ">=21"),
        ("20.9", ">=21"),
        ("1.10", ">=1.9"),
        ("1.0.0", "==1.0"),
        ("1.2", "!=1.2"),
        ("5", ""),
        ("2.0", "<=2"),
        ("2.0.1", ">2"),
    ],
)
def test_a_version_lies_in_a_range_as_packaging_says(version: str, wanted: str) -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    assert in_range(version, wanted) == specifiers.SpecifierSet(wanted).contains(
        version
    )


def test_packages_are_those_of_the_project() -> None:
    found = packages()
    assert {"torch", "numpy", "typer"} <= {one.name for one in found if not one.extra}
    for extra in ("flare", "plots", "tracking"):
        names = {
            one.partition(">")[0] for one in PROJECT["optional-dependencies"][extra]
        }
        assert {one.name for one in found if one.extra == extra} == names


def test_what_is_installed_fits_and_what_is_not_does_not() -> None:
    torch = next(one for one in packages() if one.name == "torch" and not one.extra)
    assert torch.fits
    assert torch.installed is not None
    assert not Package("torch", ">=99").fits
    assert Package("no-such-package-at-all", "").installed is None
    assert not Package("no-such-package-at-all", "").fits


def test_two_parties_train() -> None:
    assert "trained a batch and sent" in doctor.federation()


def test_encryption_agreement_and_intersection() -> None:
    assert doctor.cryptography().endswith("are right")


def test_a_known_epsilon() -> None:
    # Balle and Wang's curve at sigma 1, delta 1e-5
    assert "(4.3772)" in doctor.accounting()


def test_a_step_on_the_processor() -> None:
    assert "a training step is right" in doctor.training_step("cpu")
    assert all(name.startswith("cuda:") for name in doctor.gpus())


def test_a_library_that_counts_wrongly_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "gaussian_epsilon", lambda mu, delta: 4.0)
    with pytest.raises(ArithmeticError, match="delta should be"):
        doctor.accounting()


def test_a_device_that_is_not_there_raises() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        doctor.training_step("cuda:99")
