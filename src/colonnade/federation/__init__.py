"""From a TOML file or data frames to parties, roles, engine and driver."""

from colonnade.federation.federation import Federation, load
from colonnade.federation.fit import Outcome
from colonnade.rows.holdings import Predictions
from colonnade.settings.federation_file import Settings

__all__ = ["Federation", "Outcome", "Predictions", "Settings", "load"]
