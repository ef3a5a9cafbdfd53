"""What each party holds, in words and, where pictures were cut, as the region of the picture: never its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colonnade.federation import Federation


def regions(federation: Federation) -> dict[str, dict[str, Any]]:
    """Per party `holds` in words and, for strips and patches, its `region` [top, left, height, width] of a `picture`
    [height, width]. Patches are those that the parties hold, with the padding that makes them equally large."""
    data = federation.settings.data
    features = {name: federation.holdings.columns[name].features for name in federation.owners}
    shapes = {name: tuple(x.shape[1:]) for name, x in features.items() if x is not None}
    columns = 1
    if data.dataset is not None and data.split == "patches":
        columns = data.parts[1] if isinstance(data.parts, tuple) else data.parts
    cut = data.dataset is not None and data.split in ("strips", "patches")
    if not cut or any(len(shape) < 2 for shape in shapes.values()):
        return {name: {"holds": _columns(federation, name, shape)} for name, shape in shapes.items()}
    found: dict[str, dict[str, Any]] = {}
    top = left = 0
    for number, (name, shape) in enumerate(shapes.items(), 1):
        height, width = shape[-2:]
        found[name] = {"holds": f"{height} × {width} pixels", "region": [top, left, height, width]}
        top, left = (top, left + width) if number % columns else (top + height, 0)
    whole = [max(r[at] + r[at + 2] for r in (one["region"] for one in found.values())) for at in (0, 1)]
    return {name: {**one, "picture": whole} for name, one in found.items()}


def _columns(federation: Federation, party: str, shape: tuple[int, ...]) -> str:
    prepared = federation.holdings.columns[party].preprocessor
    if prepared is not None:
        count = len(prepared.columns)
        return f"{count} column{'s' * (count != 1)}"
    return f"{' × '.join(map(str, shape))} values"
