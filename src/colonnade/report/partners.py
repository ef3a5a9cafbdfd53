"""What other commands add to a run: who matters, who was chosen, which rows they share,
what attacks could learn."""

from __future__ import annotations

from colonnade.explain.importance import HEADS, MEASURES, disagreement, ranked_by
from colonnade.explain.pictures import SCORE
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Cell, Content, Html, cell, h, joined, note, table
from colonnade.report.words import amount, count, metric, score, seconds, sentence, size
from colonnade.selection import Selection


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
    read = Selection.from_json(selection)
    compared = [read.in_words(found) for found in read.against_last.values()]
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
        h("p", " ".join([*compared, read.on_ties])) if compared else None,
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
    audit = facts.audit
    findings = audit["findings"]
    missed = [
        [release[key] for key in ("release", "owner", "receiver", "why")]
        for release in audit.get("not_attacked", [])
    ]
    assumptions = dict.fromkeys(
        (finding["attack"], finding["assumes"]) for finding in findings
    )
    items = [
        h("li", h("b", attack), f": by a party that {assumes}.")
        for attack, assumes in assumptions
    ]
    sites = audit.get("sites") or {}
    return [
        h(
            "p",
            "Each attack was given what one party had received and holds anyway, and"
            " scored against the truth. ",
            f"It was made on {audit['date'][:10]}. " if "date" in audit else None,
            _outcome(audit),
        ),
        h("p", HOW_TO_READ) if any(map(_tells_classes, findings)) else None,
        plates(figures, "attacks"),
        _findings_table(findings) if findings else None,
        _plain_terms(findings),
        h("ul", items) if items else None,
        table("Not attacked", ("release", "of", "read by", "why"), missed)
        if missed
        else None,
        table("What sites say of their own columns", ("site", "says"), sites.items())
        if sites
        else None,
        [note(sentence(words)) for words in audit.get("notes", [])],
        _rebuilt_pictures(facts),
    ]


HOW_TO_READ = (
    "AUC is how often a row of a class is suspected more than another row: 0.5 is"
    " guessing, 1 is every row. The verdict and the thresholds go by the lower end of"
    " its interval. Where too few rows of a class were attacked nothing is measured,"
    " which is no pass."
)


def _tells_classes(finding: Plain) -> bool:
    return "accuracy" in finding["details"] or not finding["measured"]


def _outcome(audit: Plain) -> Content:
    """Whether the thresholds that were set are kept."""
    findings = audit["findings"]
    crossed = sum(finding["crossed"] for finding in findings)
    unknown = sum(finding["unknown"] for finding in findings)
    missed = len(audit.get("not_attacked", []))
    faults = []
    if crossed:
        faults.append(
            f"{crossed} of {len(findings)} findings are above a threshold that was set."
        )
    if unknown:
        faults.append(
            f"{unknown} of {len(findings)} findings are on too few rows of some class to"
            " say whether they keep their threshold: audit more rows."
        )
    if missed:
        faults.append(f"{count(missed, 'release')} that can be read: not attacked.")
    within = "No thresholds were set in the run's [audit] table."
    if audit.get("thresholds"):
        within = (
            f"None of {count(len(findings), 'finding')} is above the thresholds that"
            " were set."
        )
    return [
        None if crossed or unknown else [within, " "],
        h("span", " ".join(faults), class_="over") if faults else None,
    ]


def _findings_table(findings: list[Plain]) -> Html:
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
    return table("Findings", headings, [_finding_row(finding) for finding in findings])


def _finding_row(finding: Plain) -> list[Content | Cell]:
    low = finding["low"]
    high = finding["high"]
    interval = "" if low is None or high is None else f"{low:z.3f} – {high:z.3f}"
    verdict: list[Content] = [finding["verdict"]]
    for fault, words in (("crossed", "above"), ("unknown", "not known:")):
        if finding[fault]:
            limit = f"{words} {finding['limit']} = {finding['threshold']:g}"
            verdict += [" ", h("span", limit, class_="over")]
    names = ("attacker", "victim", "attack", "moment", "metric")
    return [
        *(finding[name] for name in names),
        _measured(finding["score"], "{:z.3f}"),
        Cell(interval, low),
        cell(finding["baseline"], "{:z.3f}".format),
        verdict,
    ]


def _measured(value: float | None, words: str) -> Cell:
    """A number in this format, or that there is none."""
    return Cell("not measured" if value is None else words.format(value), value)


def _plain_terms(findings: list[Plain]) -> Html | None:
    """What attacks on classes mean for the rows, where classes were told."""
    rows = []
    for finding in findings:
        told = finding["details"]
        if "accuracy" not in told:
            continue
        rows.append(
            [
                f"{finding['attacker']} on {finding['victim']}",
                finding["attack"],
                finding["moment"],
                cell(told["rows"], amount),
                _measured(told["class_rows"], "{:,}"),
                *(
                    _measured(told[key], "{:.1%}")
                    for key in (
                        "accuracy",
                        "accuracy_without",
                        "recall",
                        "recall_without",
                    )
                ),
            ]
        )
    headings = (
        "by, on",
        "attack",
        "when",
        "rows",
        "of the class",
        "labels said right",
        "by the commonest class",
        "of the class in the most suspected 5 %",
        "by chance",
    )
    caption = (
        "What that means: the class is the rarer one, or of several the one told best"
    )
    return table(caption, headings, rows) if rows else None


def _rebuilt_pictures(facts: Facts) -> Html | None:
    pictures = []
    for name, address in facts.pictures.items():
        title = f"What can be rebuilt of {name.removeprefix('inversion-')}'s columns"
        drawn = h("img", src=address, alt=f"{title}, drawn by the audit")
        pictures.append(h("figure", h("figcaption", title), drawn))
    return h("div", pictures, class_="figures") if pictures else None
