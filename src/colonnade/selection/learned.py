"""Who learned what in a selection, in words, and what each release tells whoever receives it."""

from __future__ import annotations

from collections.abc import Sequence

from colonnade.selection.aggregation import CANDIDATES, SEEN, SORTED, TOTAL
from colonnade.selection.leader import QUERIES, STOPS, UNFINISHED
from colonnade.selection.participant import DISTANCES, RANKING, REACH
from colonnade.selection.settings import SelectionSettings
from colonnade.selection.sorting import ORDER

REVEALS = {
    RANKING: "which pseudo ids are nearest to a query in this participant's columns, in order",
    DISTANCES: "nothing: encrypted for whoever sorts, who is given sums of two or more participants only",
    REACH: "the power of two above this participant's largest partial distance",
    ORDER: "the order of a query's candidates by a group's distance; not the distances",
    SEEN: "which pseudo ids are near a query in the columns of all participants",
    SORTED: "the nearest pseudo ids of a query in a group's columns, up to where enough have the query's label",
    TOTAL: "to who has the key: a group's distances",
    CANDIDATES: "which pseudo ids are candidates of a query",
    QUERIES: "which pseudo ids are queries",
    STOPS: "at which instance a query's scan stopped, so which of those seen has the query's label",
    UNFINISHED: "for which queries more of an order is needed",
}


def by_information(
    settings: SelectionSettings, *, leader: str, server: str, keys: str, participants: Sequence[str]
) -> dict[str, str]:
    """After VF-MINE: for each party what it knows now and did not before."""
    ranks = "each participant's nearest pseudo ids of each query, in order; " if settings.fagin else ""
    found = {
        server: f"{ranks}each group's order of the candidates; never a distance, a label or a row's identity"
        + ("; of one seen instance per query, that it has the query's label" if settings.fagin else ""),
        leader: "the joint mutual information of each tested group; per query and group, which rows are nearest, in "
        "order, up to the last neighbour needed; the power of two above each participant's distances",
    }
    mine = "which rows are queries" + (" and candidates" if settings.fagin else "")
    sorts = (
        "; of queries it was drawn for, the distances summed over groups of two or more participants, from which, with "
        "its own distances and where groups overlap, it may compute another participant's"
    )
    for name in participants:
        own = found[leader] + "; " if name == leader else ""
        found[name] = own + mine + (sorts if settings.decryptor == "participants" else "")
    if settings.decryptor == "key_server":
        found[keys] = (
            "distances summed over groups of two or more participants, of rows without any name; where groups overlap, "
            "by solving for them, also a participant's. It is trusted to work with nobody"
        )
    if settings.scheme == "plain":
        found = {name: f"{text}. Nothing was encrypted: distances crossed readable" for name, text in found.items()}
    return found
