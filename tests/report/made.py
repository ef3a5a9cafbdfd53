"""Small runs with everything that a report can show, and what hostile names look like."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

from tests.federation.small import quick, write
from tests.federation.small_multi import write as write_several

from colonnade.alignment import Ids, align_here
from colonnade.attacks.audit import audit_run
from colonnade.attacks.report import write as write_audit
from colonnade.explain import report as explaining
from colonnade.explain.pictures import write as write_explanation
from colonnade.federation import Federation, Settings, load
from colonnade.report.baselines import measure

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
OUTBOX = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}
NOISY = quick(
    train={"epochs": 3, "early_stop": False},
    parties={"lab": {"outbox": OUTBOX, "budget": {"epsilon": 8.0, "delta": 1e-5}}},
    audit={"label_inference": 0.3},
)
SELECTION: dict[str, Any] = {
    "method": "vf_ps",
    "chosen": ["lab"],
    "ranking": ["lab", "clinic"],
    "scores": {"lab": 0.5, "clinic": 0.25},
    "groups": [],
    "cost": {
        "seconds": 0.5,
        "bytes": 1234,
        "encryptions": 3,
        "additions": 2,
        "decryptions": 1,
    },
    "learned": {
        "clinic": "the joint mutual information",
        "key_server": "sums of distances",
    },
}


def plain_run(folder: Path) -> Path:
    file = write(
        folder.parent / "tables",
        settings=quick(train={"epochs": 3, "early_stop": False}),
    )
    Federation.from_toml(file).fit(folder)
    return folder


def noisy_run(folder: Path) -> Path:
    file = write(folder.parent / "tables", settings=NOISY)
    Federation.from_settings(Settings.from_toml(file)).fit(folder)
    measure(folder)
    write_explanation(
        explaining.explain(load(folder), tsne_rows=3),
        folder / "explain",
        pictures=False,
    )
    write_audit(audit_run(folder, rows=8), folder / "audit")
    (folder / "selection").mkdir()
    (folder / "selection" / "selection.json").write_text(json.dumps(SELECTION))
    ids = {
        name: Ids.of(name, [[f"P{n}" for n in range(start, start + 9)]])
        for start, name in enumerate(("clinic", "lab"))
    }
    align_here(ids).write(folder / "alignment")
    return folder


def multi_run(folder: Path) -> Path:
    file = write_several(folder.parent / "tables")
    Federation.from_toml(file).fit(folder)
    return folder


class Page(HTMLParser):
    """What a page says: its text, its tables by caption, its ids and addresses, and
    tags that must be closed."""

    VOID: ClassVar = {"meta", "img", "br", "line", "rect", "path", "circle"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = []
            self._caption = ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self._caption, self._rows)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.words.append(data)
        if "caption" in self.open:
            self._caption += data
        elif self._rows and ("td" in self.open or "th" in self.open):
            self._rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]

    def keys(self, markup: str, caption: str) -> list[list[str]]:
        """The sort keys of a table's body, row by row."""
        part = markup[markup.index(caption) :]
        part = part[: part.index("</table>")]
        return [
            re.findall(r'data-key="([^"]*)"', row) for row in part.split("<tr>")[2:]
        ]
