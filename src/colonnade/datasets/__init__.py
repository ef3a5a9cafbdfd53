"""Tables of parties, their preprocessing, vertical splits, and data sets by name.

The names below are imported on first use, so that `import colonnade.datasets` costs
nothing and data sets stored as arrays can be loaded where only NumPy and PyTorch are
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use

if TYPE_CHECKING:
    from colonnade.datasets.catalogue import load as load
    from colonnade.datasets.dataset import Dataset as Dataset
    from colonnade.datasets.dataset import Rows as Rows
    from colonnade.datasets.entries import CATALOGUE as CATALOGUE
    from colonnade.datasets.entries import Entry as Entry
    from colonnade.datasets.preprocess import Labels as Labels
    from colonnade.datasets.preprocess import Preprocessor as Preprocessor
    from colonnade.datasets.split import Split as Split
    from colonnade.datasets.split import by_names as by_names
    from colonnade.datasets.split import column_blocks as column_blocks
    from colonnade.datasets.split import column_runs as column_runs
    from colonnade.datasets.split import even_columns as even_columns
    from colonnade.datasets.split import image_patches as image_patches
    from colonnade.datasets.split import image_strips as image_strips
    from colonnade.datasets.split import party_names as party_names
    from colonnade.datasets.split import picture_views as picture_views
    from colonnade.datasets.split import train_validation_test as train_validation_test
    from colonnade.datasets.split import views as views
    from colonnade.datasets.table import Table as Table
    from colonnade.datasets.table import align as align
    from colonnade.datasets.table import read_table as read_table
    from colonnade.datasets.table import table_from_frame as table_from_frame
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "catalogue load",
        "dataset Dataset Rows",
        "entries CATALOGUE Entry",
        "preprocess Labels Preprocessor",
        "split Split by_names column_blocks column_runs even_columns image_patches"
        " image_strips party_names picture_views train_validation_test views",
        "table Table align read_table table_from_frame",
    )
    __all__ = __dir__()
