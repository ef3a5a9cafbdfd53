"""The scale on which labels that are numbers may be trained, by the settings."""

from __future__ import annotations

from colonnade.datasets.target_scale import TargetScale
from colonnade.settings.algorithms import AlgorithmSettings
from colonnade.settings.federation_file import Settings


def target_scale_of(settings: Settings) -> TargetScale:
    """The scale on which labels that are numbers may be trained.

    Where nobody chose one, it stays linear for what is said in the label's own unit:
    coefficients, and a loss that the file names. Several label owners agree on a mean
    and a deviation, and on no logarithm.
    """
    wanted = settings.data.target_scale
    if wanted != "auto":
        return wanted
    config: AlgorithmSettings = settings.config
    names_a_loss = getattr(config, "loss", "auto") != "auto"
    if settings.shared or config.one_weight_per_column or names_a_loss:
        return "linear"
    return "auto"
