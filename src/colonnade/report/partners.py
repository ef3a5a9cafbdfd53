"""What other commands add to a run: who matters, who was chosen, which rows they share,
what attacks could learn."""

from __future__ import annotations

from colonnade.explain.importance import HEADS, MEASURES, disagreement, ranked_by
from colonnade.explain.pictures import SCORE
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Cell, Content, Html, cell, h, joined, note, table
from colonnade.report.words import amount, count, metric, score, seconds, sentence, size


def importance_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    importance = facts.importance
    assert importance is not None
    measures = {
        name: importance["measures"][name]
        for name in MEASURES
        if name in importance["measures"]
    }
    ranking = importance["ranking"]
    order = [h("span", name, class_="party") for name in ranking[:8]]
    by = ranked_by(importance["ranked_by"])
    words = disagreement(
        measures, importance["ranked_by"], importance.get("deviations", {})
    )
    rows = [
        [party, *(cell(values.get(party), score) for values in measures.values())]
        for party in ranking
    ]
    headings = ("party", *(MEASURES[name].heading for name in measures))
    lost = [MEASURES[name].heading for name in measures if name not in HEADS]
    sigma = (
        f"; the noise has σ = {importance['noise_sigma']:g}"
        if "noise" in measures
        else ""
    )
    return [
        h(
            "p",
            "Ranked by ",
            by,
            ", from most to least important: ",
            joined(order),
            ".",
        ),
        h("p", h("b", words)) if words else None,
        plates(figures, "importance"),
        table(
            f"Measures on {importance['rows']} {importance['split']} rows",
            headings,
            rows,
        ),
        _added(importance) if importance.get("added") else None,
        (
            note(f"{', '.join(lost)}: {metric(importance['metric'])} lost{sigma}.")
            if lost
            else None
        ),
        [note(sentence(words)) for words in importance.get("notes", [])],
    ]


def _added(importance: Plain) -> Html:
    """What each partner adds on the rows that it holds, where the model can do without
    it."""
    rows = [
        [
            party,
            cell(gain["rows"], amount),
            *(cell(gain[key], score) for key in ("with_it", "without_it", "gain")),
        ]
        for party, gain in importance["added"].items()
    ]
    name = metric(importance["metric"])
    caption = f"What each partner adds, on the {importance['split']} rows that it holds"
    return table(
        caption, ("partner", "rows", f"{name} with it", "without it", "added"), rows
    )


def selection_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    selection = facts.selection
    assert selection is not None
    entropy = selection.get("entropy")
    most = (
        f"; the highest possible is {entropy:.3f}, the label's entropy"
        if isinstance(entropy, float)
        else ""
    )
    cost = selection["cost"]
    level = ", ".join(selection.get("level") or [])
    work = ", ".join(
        f"{cost[name]:,} {name}" for name in ("encryptions", "additions", "decryptions")
    )
    return [
        h(
            "p",
            "Before training, the parties were ranked by ",
            h("b", selection["method"]),
            ". Kept: ",
            joined([h("span", name, class_="party") for name in selection["chosen"]]),
            ". ",
            f"The score is {SCORE.get(selection['method'], 'its own')}{most}.",
        ),
        plates(figures, "selection"),
        (
            h("p", f"Within error: {level} may be as good as the last that was kept.")
            if level
            else None
        ),
        h("p", f"It took {seconds(cost['seconds'])}, {size(cost['bytes'])}, {work}."),
        table(
            "What each learned from it",
            ("who", "learned"),
            selection["learned"].items(),
        ),
    ]


def alignment_section(facts: Facts) -> list[Content]:
    alignment = facts.alignment
    assert alignment is not None
    rows = [
        [
            f"{name} (drives)" if name == alignment["driver"] else name,
            cell(party["rows"], amount),
            cell(party["ids"], amount),
            cell(party["bytes"]["out"], size),
            cell(party["bytes"]["in"], size),
            party["learned"],
        ]
        for name, party in alignment["parties"].items()
    ]
    others = list(alignment["parties"]) != list(facts.parties) and facts.finished
    shared = sum(facts.rows.values())
    members = (
        f" The run itself was among {', '.join(facts.parties)}, who share {shared:,}."
        if others
        else ""
    )
    return [
        h(
            "p",
            h("b", f"{alignment['common']:,} rows"),
            f" are common to all {len(rows)} parties, found by private set intersection"
            f" over {alignment['ids']} ids. It protects among parties that follow"
            f" it.{members}",
        ),
        *(
            []
            if (helper := alignment.get("helper")) is None
            else [
                h(
                    "p",
                    f"A helper, {helper['name']}, compared keyed hashes. It learned"
                    f" {helper['learned']}.",
                )
            ]
        ),
        table(
            "Alignment", ("party", "rows", "ids", "sent", "received", "learned"), rows
        ),
    ]


def audit_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    assert facts.audit is not None
    findings = facts.audit["findings"]
    crossed = [finding for finding in findings if finding.get("crossed")]
    limits = facts.audit.get("thresholds") or {}
    missed = facts.audit.get("not_attacked") or []
    intro = (
        "Each attack was given what one party had received and holds anyway, and scored"
        " against the truth. "
    )
    not_attacked = h(
        "span",
        f"{count(len(missed), 'release')} that can be read: not attacked.",
        class_="over",
    )
    rows = []
    for finding in findings:
        low = finding.get("low")
        high = finding.get("high")
        interval = "" if low is None or high is None else f"{low:z.3f} – {high:z.3f}"
        verdict: Content = finding["verdict"]
        if finding.get("crossed"):
            limit = f"above {finding['limit']} = {finding['threshold']:g}"
            verdict = [finding["verdict"], " ", h("span", limit, class_="over")]
        three = "{:z.3f}".format
        numbers = (
            cell(finding["score"], three),
            Cell(interval, low),
            cell(finding["baseline"], three),
        )
        names = (
            finding[key] for key in ("attacker", "victim", "attack", "moment", "metric")
        )
        rows.append([*names, *numbers, verdict])
    headings = (
        "by",
        "on",
        "attack",
        "when",
        "measure",
        "score",
        "95 %",
        "without attack",
        "verdict",
    )
    assumed = dict.fromkeys(
        (finding["attack"], finding["assumes"]) for finding in findings
    )
    items = [
        h("li", h("b", attack), f": by a party that {assumes}.")
        for attack, assumes in assumed
    ]
    lines = [
        [release[key] for key in ("release", "owner", "receiver", "why")]
        for release in missed
    ]
    sites = facts.audit.get("sites") or {}
    pictures = []
    for name, address in facts.pictures.items():
        title = f"What can be rebuilt of {name.removeprefix('inversion-')}'s columns"
        drawn = h("img", src=address, alt=f"{title}, drawn by the audit")
        pictures.append(h("figure", h("figcaption", title), drawn))
    return [
        h(
            "p",
            intro,
            _verdict(len(findings), len(crossed), bool(limits)),
            [" ", not_attacked] if missed else None,
        ),
        plates(figures, "attacks"),
        table("Findings", headings, rows) if rows else None,
        h("ul", items) if items else None,
        (
            table("Not attacked", ("release", "of", "read by", "why"), lines)
            if lines
            else None
        ),
        (
            table(
                "What sites say of their own columns", ("site", "says"), sites.items()
            )
            if sites
            else None
        ),
        [note(sentence(words)) for words in facts.audit.get("notes", [])],
        h("div", pictures, class_="figures") if pictures else None,
    ]


def _verdict(total: int, crossed: int, limited: bool) -> Content:
    if crossed:
        return h(
            "span",
            f"{crossed} of {total} findings are above a threshold that was set.",
            class_="over",
        )
    if limited:
        return (
            f"None of {count(total, 'finding')} is above the thresholds that were set."
        )
    return "No thresholds were set in the run's [audit] table."
