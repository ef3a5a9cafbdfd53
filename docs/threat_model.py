"""The tables of docs/threat-model.md, from the message classes themselves: `python
docs/threat_model.py` rewrites them.

Prose is written by hand, between the tables. A table stands between `<!-- NAME:
generated -->` and `<!-- end -->`; a test holds that each is up to date, and that
nothing that exchanges messages lacks one.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import colonnade.selection as selecting
from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.alignment import helper, id_owner, keyed
from colonnade.attacks import at_site
from colonnade.core import Message, Party
from colonnade.core.message import Request
from colonnade.core.party import _request_type
from colonnade.selection import aggregation, leader, participant, sorting
from colonnade.sites import candidate, host, label_sets, reader
from colonnade.sites.selecting import LeadingHost

DOCUMENT = Path(__file__).with_name("threat-model.md")
CHOOSE = DOCUMENT.with_name("how-to-choose-an-algorithm.md")
MEASURED = re.compile(
    r"^\| `(\w+)`(?:, ([^|]+))? \| ([\d.]+|–) \| (?:[\d.]+|–) \| (?:[\d.]+|–) \|$",
    re.MULTILINE,
)
ENDED = (
    "`randomized_response` or `two_stage` on labels bounds it by ε; `one_shot` sends"
    " nothing of the kind"
)
NEVER = "there is nothing to guess from"
BLOCK = re.compile(r"<!-- (\S+): generated -->\n(.*?)<!-- end -->\n", re.DOTALL)


@dataclass(frozen=True)
class Subject:
    """Something that exchanges messages: its roles, and what each release tells its
    receiver."""

    roles: tuple[type[Party], ...]
    reveals: Mapping[str, str]
    # name -> what crosses from columns, and from labels
    modes: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""  # a table of another kind, instead


def subjects() -> dict[str, Subject]:
    """All there are, in the order of the document."""
    found = {"labels": Subject((), {}, text=guessed())}
    found["alignment"] = Subject((id_owner.IdOwner,), id_owner.REVEALS)
    found["alignment_helper"] = Subject((keyed.KeyedIds, helper.Helper), keyed.REVEALS)
    parts = (
        leader.Leader,
        participant.Participant,
        aggregation.AggregationServer,
        sorting.KeyServer,
    )
    found["selection"] = Subject(parts, selecting.REVEALS)
    for name, algorithm in ALGORITHMS.items():
        found[name] = Subject(_roles(algorithm), algorithm.reveals, _modes(algorithm))
    asked = (host.ColumnHost, reader.Reader, candidate.SelectionHost, at_site.AuditHost)
    found["machines"] = Subject(asked, reader.REVEALS | at_site.REVEALS)
    found["machines_several"] = Subject(
        (host.LabelHost, label_sets.Describer, LeadingHost, at_site.LabelAuditHost), {}
    )
    return found


def _roles(algorithm: AnyAlgorithm) -> tuple[type[Party], ...]:
    nested = algorithm.nested
    server = () if nested is None else (nested.aggregation_server,)
    return (algorithm.feature_owner, algorithm.label_owner, *server)


def _modes(algorithm: AnyAlgorithm) -> dict[str, Any]:
    """Where settings decide what can be read: what they decide."""
    if algorithm.crossing is None:
        return {}
    modes = algorithm.modes or {"default": algorithm.config()}
    return {name: algorithm.crossing(config) for name, config in modes.items()}


def table(subject: Subject) -> str:
    """What is asked and answered, and what each release tells."""
    if subject.text:
        return subject.text
    lines = ["| asked | answered by | with |", "|---|---|---|"]
    for role in subject.roles:
        for request, method in sorted(
            role.served().items(), key=lambda item: item[0].kind
        ):
            reply = _reply(request)
            assert _request_type(getattr(role, method)) is request
            lines.append(
                f"| `{_message(request)}` | {_words(role)} | `{_message(reply)}` |"
            )
    lines += (
        ["", "| released as | what its receiver learns |", "|---|---|"]
        if subject.reveals
        else []
    )
    lines += [f"| `{name}` | {meaning} |" for name, meaning in subject.reveals.items()]
    if subject.modes:
        lines += ["", "| mode | from columns | from labels |", "|---|---|---|"]
        for mode, (columns, labels) in subject.modes.items():
            lines.append(f"| `{mode}` | {_events(columns)} | {_events(labels)} |")
    return "\n".join(lines) + "\n"


def guessed() -> str:
    """Per algorithm who can guess labels, how well the audit did on the standard task,
    and which setting ends it. What was measured stands in the table of `colonnade bench
    choose`."""
    lines = [
        "| algorithm | what follows labels, and reaches feature owners | told in `bench"
        " choose` | what ends it |"
    ]
    lines.append("|---|---|---|---|")
    measured = MEASURED.findall(
        CHOOSE.read_text(encoding="utf-8").partition("### What leaks")[2]
    )
    for name, algorithm in ALGORITHMS.items():
        sent = [
            f"`{one}`"
            for one, release in algorithm.releases.items()
            if release.of == "labels"
        ]
        shares = {
            how: float(share)
            for one, how, share in measured
            if one == name and share != "–"
        }
        told = "; ".join(
            f"{share:.0%}" + f" ({how})" * bool(how) for how, share in shares.items()
        )
        told = told or ("not measured" if sent else "–")
        lines.append(
            f"| `{name}` | {', '.join(sent) or 'nothing'} | {told} |"
            f" {ENDED if sent else NEVER} |"
        )
    return "\n".join(lines) + "\n"


def _reply(request: type[Request[Any]]) -> type[Message]:
    """The R of a Request[R]."""
    bases = (
        base
        for kind in request.__mro__
        for base in vars(kind).get("__orig_bases__", ())
    )
    return next(get_args(base)[0] for base in bases if get_origin(base) is Request)  # type: ignore[no-any-return]


def _message(kind: type[Message]) -> str:
    fields = ", ".join(f"{name}: {_type(hint)}" for name, hint in kind.hints().items())
    return f"{kind.__qualname__}({fields})"


def _type(hint: Any) -> str:
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type, parts))
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"{_type(parts[1])} by name"
    return {
        "Released": "tensor",
        "Ciphertext": "ciphertext",
        "NoneType": "nothing",
        "str": "text",
    }.get(hint.__name__, hint.__name__)


def _events(crossing: Mapping[str, Any]) -> str:
    readable = {"non-private": "readable", "public": "public"}
    return (
        "; ".join(
            f"`{name}` {readable.get(event.kind, event.kind)}"
            for name, event in crossing.items()
        )
        or "nothing"
    )


def _words(role: type[Party]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", role.__name__).lower()


def renewed(text: str) -> str:
    """The document with its tables as they must be; an algorithm without a section gets
    one, after the others."""
    known = subjects()
    there = {found[1] for found in BLOCK.finditer(text)}
    for name in (name for name in ALGORITHMS if name not in there):
        last = [found for found in BLOCK.finditer(text) if found[1] in ALGORITHMS][
            -1
        ].end()
        about = ALGORITHMS[name].config.about()
        text = (
            f"{text[:last]}\n### {name}\n\n{about}\n\n<!-- {name}: generated -->\n<!--"
            f" end -->\n{text[last:]}"
        )
    return BLOCK.sub(
        lambda found: (
            f"<!-- {found[1]}: generated -->\n{table(known[found[1]])}<!-- end -->\n"
        ),
        text,
    )


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
