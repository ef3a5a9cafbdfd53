"""Mechanisms of an owner's outbox, each a file and a line here, what they cost, and the
budget that stops them."""

from collections.abc import Callable

from colonnade.core.release import Mechanism, Plain
from colonnade.privacy.binomial import Binomial
from colonnade.privacy.budget import Account
from colonnade.privacy.gaussian import Gaussian, NoiseOnly
from colonnade.privacy.randomized_response import RandomizedResponse, TwoStage
from colonnade.settings.sections import Budget

__all__ = [
    "Account",
    "Binomial",
    "Budget",
    "Gaussian",
    "NoiseOnly",
    "RandomizedResponse",
    "TwoStage",
]

MECHANISMS: dict[str, Callable[..., Mechanism]] = {
    "plain": Plain,
    "gaussian": Gaussian,
    "binomial": Binomial,
    "noise_only": NoiseOnly,
}
LABEL_MECHANISMS: dict[str, Callable[..., Mechanism]] = {
    "randomized_response": RandomizedResponse,
    "two_stage": TwoStage,
}
"""Mechanisms for labels, which are drawn once before training; what the label owner
sends follows from the draw."""
