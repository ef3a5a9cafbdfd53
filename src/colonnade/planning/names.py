"""What the name of a column says: that it is an id, a label, or about a person.

Names are compared by their words, without accents and in small letters: "LoanStatus",
"loan_status" and "Loan status" are the words "loan" and "status", and "Kündigung" is
"kundigung". To teach `colonnade init` a language, add its words here.
"""

from __future__ import annotations

import re
import unicodedata

ID_WORDS = frozenset(("id", "ids", "uuid", "guid", "key", "ssn", "identifier", "pk"))
NUMBER_WORDS = frozenset(
    (
        "no",
        "nr",
        "num",
        "number",
        "nummer",
        "numero",
        "matricule",
        "dni",
        "nif",
        "siren",
    )
)
PERSON_WORDS = frozenset(
    (
        *("patient", "person", "customer", "client", "member", "user", "account"),
        *("kunde", "kunden", "konto", "cliente", "conto", "cuenta", "compte"),
    )
)
"""Words for whom a row is about: a column of this name often has their ids."""
ID_ENDINGS = ("nummer", "nr", "kennung", "schluessel", "schlussel")
"""How German compounds end that are ids: "Kundennummer", "Vertragsnr"."""

LABEL_WORDS = frozenset(
    (
        # English
        *("y", "label", "target", "outcome", "diagnosis", "default", "defaulted"),
        *("churn", "churned", "attrition", "exited", "fraud", "fraudulent", "bad"),
        *("delinquent", "delinquency", "chargeoff", "bankrupt", "bankruptcy"),
        *("survived", "died", "death", "mortality", "readmitted", "converted"),
        *("clicked", "purchased", "medv", "g3"),
        # German
        *("ausfall", "ausgefallen", "kundigung", "kuendigung", "gekundigt"),
        *("gekuendigt", "abwanderung", "betrug", "ziel", "zielvariable", "storno"),
        *("zielgrosse", "zielgroesse", "insolvenz", "diagnose"),
        # French
        *("defaut", "defaillance", "cible", "fraude", "resiliation", "impaye"),
        *("desabonnement", "diagnostic"),
        # Spanish and Portuguese
        *("impago", "incumplimiento", "objetivo", "etiqueta", "mora", "moroso", "baja"),
        *("abandono", "diagnostico", "inadimplencia", "inadimplente", "alvo", "rotulo"),
        # Italian and Dutch
        *("insolvenza", "inadempienza", "obiettivo", "frode", "abbandono", "diagnosi"),
        *("wanbetaling", "opzegging"),
    )
)
"""Words for what is to be predicted, which hardly any other column has."""
MAYBE_LABEL_WORDS = frozenset(
    (
        *("class", "flag", "response", "result", "status", "quality", "price"),
        *("klasse", "ergebnis", "preis", "qualitat", "qualitaet"),
        *("classe", "resultat", "statut", "prix", "qualite"),
        *("clase", "resultado", "estado", "precio", "calidad"),
        *("risultato", "stato", "prezzo", "qualita"),
    )
)
"""Words that a label may have, and other columns too."""
LABEL_ENDINGS = ("ausfall", "kundigung", "kuendigung", "insolvenz", "betrug")
"""How German compounds end that are labels: "Kreditausfall"."""

ABOUT_WORDS = frozenset(
    (
        *("sex", "gender", "age", "city", "town", "country", "region", "state", "zip"),
        *("postcode", "street", "name", "date", "year", "month", "marital"),
        *("education", "geschlecht", "alter", "stadt", "ort", "land", "plz", "strasse"),
        *("datum", "jahr", "monat", "sexe", "ville", "pays", "annee", "mois"),
        *("sexo", "edad", "ciudad", "pais", "fecha", "ano", "mes"),
    )
)
"""Words of columns that describe a person, and are seldom the label."""

CERTAIN = 4
LIKELY = 3
POSSIBLE = 2
FAINT = 1
"""How clearly a name speaks for a label, from `label_strength`. 0: not at all."""

ROW_NUMBERS = re.compile(r"(Unnamed: \d+(_level_\d+)?|__index_level_\d+__)?")
"""What pandas calls its row numbers where it writes them into a file, or reads them."""


def words_of(name: str) -> list[str]:
    """The words of a name, in small letters and without accents."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    folded = unicodedata.normalize("NFKD", apart.casefold())
    bare = "".join(letter for letter in folded if not unicodedata.combining(letter))
    return re.findall(r"[^\W_]+", bare)


def id_strength(name: str) -> int:
    """How clearly a name speaks for an id: 2 for "customer_id", 1 for "customer"."""
    words = words_of(name)
    if ID_WORDS.intersection(words):
        return 2
    about_somebody = PERSON_WORDS.union(NUMBER_WORDS).intersection(words)
    return int(bool(about_somebody) or any(word.endswith(ID_ENDINGS) for word in words))


def label_strength(name: str) -> int:
    """How clearly a name speaks for the label, from `CERTAIN` down to 0.

    A name that is nothing but such a word says more than a longer one: "default" more
    than "default_limit".
    """
    words = words_of(name)
    is_whole = len(words) == 1
    if any(word in LABEL_WORDS or word.endswith(LABEL_ENDINGS) for word in words):
        return CERTAIN if is_whole else LIKELY
    if MAYBE_LABEL_WORDS.intersection(words):
        return POSSIBLE if is_whole else FAINT
    return 0


def describes_person(name: str) -> bool:
    """Whether a name is that of a person's attribute, such as the city."""
    return bool(ABOUT_WORDS.intersection(words_of(name)))
