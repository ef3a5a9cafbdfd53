"""What an owner's outbox can promise, what that costs, and when it stops."""

from colonnade.privacy.binomial import Binomial
from colonnade.privacy.budget import Account, Budget
from colonnade.privacy.gaussian import Gaussian, NoiseOnly
from colonnade.privacy.randomized_response import RandomizedResponse, TwoStage

__all__ = ["Account", "Binomial", "Budget", "Gaussian", "NoiseOnly", "RandomizedResponse", "TwoStage"]
