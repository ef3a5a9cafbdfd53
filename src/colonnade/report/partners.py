"""Who matters, who was chosen, and which rows they share."""

from __future__ import annotations

from colonnade.explain.importance import HEADS, MEASURES, disagreement, ranked_by
from colonnade.explain.partners import SCORE
from colonnade.report.chart import Figure
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Content, Html, cell, h, joined, table
from colonnade.report.plates import plates
from colonnade.report.words import amount, metric, score, seconds, sentence, size


def importance_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    """The section's content; the run was explained."""
    found = facts.importance
    assert found is not None
    measures = {name: found["measures"][name] for name in MEASURES if name in found["measures"]}
    order = [h("span", name, class_="party") for name in found["ranking"][:8]]
    by = ranked_by(found["ranked_by"])
    told: list[Content] = [h("p", "Ranked by ", by, ", from most to least important: ", joined(order), ".")]
    if words := disagreement(measures, found["ranked_by"]):
        told.append(h("p", h("b", words)))
    told.append(plates(figures, "importance"))
    rows = [[party, *(cell(values.get(party), score) for values in measures.values())] for party in found["ranking"]]
    headings = ("party", *(MEASURES[name].heading for name in measures))
    told.append(table(f"Measures on {found['rows']} {found['split']} rows", headings, rows))
    if found.get("added"):
        told.append(_added(found))
    lost = [MEASURES[name].heading for name in measures if name not in HEADS]
    if lost:
        sigma = f"; the noise has σ = {found['noise_sigma']:g}" if "noise" in measures else ""
        told.append(h("p", f"{', '.join(lost)}: {metric(found['metric'])} lost{sigma}.", class_="caption-note"))
    told += [h("p", sentence(note), class_="caption-note") for note in found.get("notes", [])]
    return told


def _added(found: Plain) -> Html:
    """What each partner adds to the rows that it holds, of a model that can do without it."""
    rows = [
        [party, cell(one["rows"], amount), *(cell(one[key], score) for key in ("with_it", "without_it", "gain"))]
        for party, one in found["added"].items()
    ]
    name = metric(found["metric"])
    caption = f"What each partner adds, on the {found['split']} rows that it holds"
    return table(caption, ("partner", "rows", f"{name} with it", "without it", "added"), rows)


def selection_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    """The section's content; partners were selected."""
    found = facts.selection
    assert found is not None
    entropy = found.get("entropy")
    most = f"; the highest possible is {entropy:.3f}, the label's entropy" if isinstance(entropy, float) else ""
    told: list[Content] = [
        h("p", "Before training, the parties were ranked by ", h("b", found["method"]), ". Kept: ",
          joined([h("span", name, class_="party") for name in found["chosen"]]), ". ",
          f"The score is {SCORE.get(found['method'], 'its own')}{most}."),
        plates(figures, "selection"),
    ]  # fmt: skip
    if found.get("level"):
        told.append(h("p", f"Within error: {', '.join(found['level'])} may be as good as the last that was kept."))
    cost = found["cost"]
    work = f"{cost['encryptions']:,} encryptions, {cost['additions']:,} additions, {cost['decryptions']:,} decryptions"
    told.append(h("p", f"It took {seconds(cost['seconds'])}, {size(cost['bytes'])}, {work}."))
    told.append(table("What each learned from it", ("who", "learned"), found["learned"].items()))
    return told


def alignment_section(facts: Facts) -> list[Content]:
    """The section's content; rows were found by private set intersection."""
    found = facts.alignment
    assert found is not None
    rows = [
        [name + (" (drives)" if name == found["driver"] else ""), cell(one["rows"], amount), cell(one["ids"], amount),
         cell(one["bytes"]["out"], size), cell(one["bytes"]["in"], size), one["learned"]]
        for name, one in found["parties"].items()
    ]  # fmt: skip
    others, shared = list(found["parties"]) != list(facts.parties) and facts.finished, sum(facts.rows.values())
    here = f" The run itself was among {', '.join(facts.parties)}, who share {shared:,}." if others else ""
    return [
        h("p", h("b", f"{found['common']:,} rows"), f" are common to all {len(rows)} parties, found by private set "
          f"intersection over {found['ids']} ids. It protects among parties that follow it.{here}"),
        *([] if (helper := found.get("helper")) is None else [
            h("p", f"A helper, {helper['name']}, compared keyed hashes. It learned {helper['learned']}.")]),
        table("Alignment", ("party", "rows", "ids", "sent", "received", "learned"), rows),
    ]  # fmt: skip
