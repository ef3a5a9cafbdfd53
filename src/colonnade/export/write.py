"""Pieces on disk: a folder per organisation, which appears whole or not at all.

OUT/<party>/README.md  model_card.json
OUT/<party>/columns/   model.pt2 (torch.export)  model.safetensors  config.json
OUT/<party>/labels/    the same, of a label owner
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from colonnade.core.files import replaced_folder
from colonnade.errors import ConfigError, InputError, did_you_mean
from colonnade.export import card as cards
from colonnade.export.pieces import LABELS, Piece, Trained

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FORMAT = "colonnade-piece/1"
PROGRAM = "model.pt2"
TENSORS = "model.safetensors"
CONFIG = "config.json"


def export(
    folder: Path,
    out: Path | None = None,
    party: str | None = None,
    *,
    allow_models: Sequence[str] = (),
) -> list[Path]:
    """Write the pieces of a finished run, and return the organisations' folders. With
    `party`, only that organisation's are written; at a site, only its own.
    `allow_models` lists the import paths that the run's settings may name."""
    trained = Trained(folder, allow_models)
    if party is not None and party not in trained.parties:
        hint = did_you_mean(party, list(trained.parties))
        known = ", ".join(map(repr, trained.parties))
        if trained.part is not None:
            raise ConfigError(
                f"{folder} is the part of {known} in a run between sites; {party!r}"
                " exports at its own."
            )
        raise ConfigError(
            f"{party!r} is no party of this run{hint}; there are {known}."
        )
    names = [party] if party is not None else list(trained.parties)
    by_party = {name: pieces for name in names if (pieces := trained.pieces(name))}
    if not by_party:
        raise ConfigError(
            f"{' and '.join(map(repr, names))} holds no data, and so no piece of the"
            " model."
        )
    target = out or folder / "export"
    for name in by_party:
        if (target / name).exists():
            raise ConfigError(
                f"{target / name} is there already. Choose another --out, or remove it."
            )
    card = cards.numbers(trained)
    try:
        return [
            _write(target / name, card, pieces) for name, pieces in by_party.items()
        ]
    except OSError as error:
        raise InputError(
            f"{target} cannot be written: {error.strerror or error}."
        ) from None


def _write(folder: Path, card: dict[str, Any], pieces: list[Piece]) -> Path:
    with replaced_folder(folder) as fresh:
        for piece in pieces:
            (fresh / piece.role).mkdir()
            _write_piece(fresh / piece.role, piece)
        (fresh / "README.md").write_text(cards.page(card, pieces), encoding="utf-8")
        (fresh / "model_card.json").write_text(
            json.dumps(card, indent=2) + "\n", encoding="utf-8"
        )
    return folder


def _write_piece(folder: Path, piece: Piece) -> None:
    from safetensors.torch import save_file

    save_file(
        {key: value.contiguous() for key, value in piece.model.state_dict().items()},
        folder / TENSORS,
    )
    try:
        torch.export.save(program_of(piece), folder / PROGRAM)
        note = None
    # torch.export raises many kinds of errors for models that a graph cannot hold
    except Exception as error:
        (folder / PROGRAM).unlink(missing_ok=True)
        note = f"torch.export cannot take this model: {type(error).__name__}"
    about = {
        "format": FORMAT,
        "party": piece.party,
        "role": piece.role,
        "model": {"settings": piece.spec, "layers": str(piece.model).splitlines()},
        "program": PROGRAM if note is None else None,
        "note": note,
        "inputs": piece.inputs,
        "outputs": piece.outputs,
    }
    (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def program_of(piece: Piece) -> ExportedProgram:
    """The model as a graph, for any number of rows."""
    rows = torch.export.Dim("rows", min=1, max=1 << 40)
    example = [torch.zeros(3, *shape) for shape in piece.shapes]
    if piece.role == LABELS:
        program = torch.export.export(
            piece.model, (example,), dynamic_shapes=([{0: rows} for _ in example],)
        )
    else:
        program = torch.export.export(
            piece.model, (example[0],), dynamic_shapes=({0: rows},)
        )
    # a stack trace would show paths of the exporting machine
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program
