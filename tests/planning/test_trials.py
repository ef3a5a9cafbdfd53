"""The doctor's small uses: right here, and able to say that something is wrong."""

from __future__ import annotations

import pytest

from colonnade.planning import doctor
from colonnade.privacy import accounting


def test_two_parties_train() -> None:
    assert "trained a batch and sent" in doctor.federation()


def test_encryption_agreement_and_intersection() -> None:
    for package in ("tenseal", "coincurve", "cryptography"):
        pytest.importorskip(package)
    assert doctor.cryptography().endswith("are right")


def test_a_known_epsilon() -> None:
    pytest.importorskip("dp_accounting")
    assert "(4.3772)" in doctor.accounting()  # Balle and Wang's curve at sigma 1, delta 1e-5


def test_a_step_on_the_processor() -> None:
    assert "a training step is right" in doctor.training_step("cpu")
    assert all(name.startswith("cuda:") for name in doctor.gpus())


def test_a_library_that_counts_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "gaussian_epsilon", lambda mu, delta: 4.0)
    with pytest.raises(ArithmeticError, match="delta should be"):
        doctor.accounting()


def test_a_device_that_is_not_there_raises() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        doctor.training_step("cuda:99")
