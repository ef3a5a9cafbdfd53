"""TensorBoard: `tensorboard --logdir DIR`. The loss of every batch, and each epoch's numbers over batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.errors import ConfigError
from colonnade.tracking.settings import TrackingSettings
from colonnade.tracking.trackers import About

FOLDER = "tensorboard"


class TensorBoard:
    """Writes into the run directory, or into a folder of this run's name below the one that the settings give."""

    name = "tensorboard"

    def __init__(self, settings: TrackingSettings, run: Path) -> None:
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise ConfigError(
                '[tracking] tensorboard needs TensorBoard. Install it: pip install "colonnade[tracking]".'
            ) from None
        folder = settings.tensorboard
        self.folder = Path(folder) / run.resolve().name if isinstance(folder, str) else run / FOLDER
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"[tracking] tensorboard needs a folder, and {self.folder} is a file.")
        self.writer: Any = None

    def begin(self, about: About) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps after a killed run's last checkpoint are trained again: what it wrote of them is purged.
        self.writer = SummaryWriter(self.folder, purge_step=about.step + 1 if about.resumed else None)
        settings = {**about.tags, **about.parameters}
        lines = ["| setting | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in settings.items())]
        self.writer.add_text("settings", "\n".join(lines), about.step)

    def batch(self, step: int, loss: float) -> None:
        self.writer.add_scalar("batch/loss", loss, step)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, how: str) -> None:  # noqa: ARG002 - its files have no place for it
        if self.writer is not None:
            self.writer.close()
