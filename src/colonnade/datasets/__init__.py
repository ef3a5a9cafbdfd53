"""Tables of parties, their preprocessing, vertical splits, and data sets by name.

The names below are imported on first use, so that `import colonnade.datasets` costs nothing and data sets stored
as arrays can be loaded where only NumPy and PyTorch are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use

if TYPE_CHECKING:
    from colonnade.datasets.catalogue import load
    from colonnade.datasets.dataset import Dataset, Rows
    from colonnade.datasets.entries import CATALOGUE, Entry
    from colonnade.datasets.preprocess import Labels, Preprocessor
    from colonnade.datasets.split import (
        Split,
        by_names,
        column_blocks,
        column_runs,
        even_columns,
        image_patches,
        image_strips,
        party_names,
        picture_views,
        train_validation_test,
        views,
    )
    from colonnade.datasets.table import Table, align, read_table, table_from_frame
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "catalogue load",
        "dataset Dataset Rows",
        "entries CATALOGUE Entry",
        "preprocess Labels Preprocessor",
        "split Split by_names column_blocks column_runs even_columns image_patches image_strips party_names "
        "picture_views train_validation_test views",
        "table Table align read_table table_from_frame",
    )

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Entry",
    "Labels",
    "Preprocessor",
    "Rows",
    "Split",
    "Table",
    "align",
    "by_names",
    "column_blocks",
    "column_runs",
    "even_columns",
    "image_patches",
    "image_strips",
    "load",
    "party_names",
    "picture_views",
    "read_table",
    "table_from_frame",
    "train_validation_test",
    "views",
]
