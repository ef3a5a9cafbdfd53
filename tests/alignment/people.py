"""People as a clinic and a laboratory write them down: many share an e-mail address,
some a phone number alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

ID = ["email", ["name", "birth_date"], "phone"]
RULES = {"email": "email", "name": "name", "birth_date": "date", "phone": "phone +41"}
DATA = {"id": ID, "align": "private", "stratify": False}
OWN = ["mail", ["full_name", "born"], "tel"]


def people(rows: int = 90, seed: int = 0) -> dict[str, Any]:
    """Of a third each the e-mail addresses agree, only names and birth dates do, or
    only phone numbers do. The laboratory writes all of it in its own way, and has ten
    strangers."""
    draw = np.random.default_rng(seed)
    number = np.arange(rows)
    kind = number % 3
    signal = draw.normal(size=rows)
    clinic = pd.DataFrame(
        {
            "email": [f"p{n}@x.org" for n in number],
            "name": [f"Zoë Müller-{chr(65 + n % 26)}{n}" for n in number],
            "birth_date": [f"19{50 + n % 40}-01-{1 + n % 28:02d}" for n in number],
            "phone": [f"+41 79 {n:07d}" for n in number],
            "age": draw.normal(size=rows),
            "ill": np.where(signal + 0.3 * draw.normal(size=rows) > 0, "yes", "no"),
        }
    )
    lab = pd.DataFrame(
        {
            "mail": [
                f"P{n}@X.ORG " if kind[n] == 0 else ("" if n % 2 else f"new{n}@y.org")
                for n in number
            ],
            "full_name": [
                f"zoe muller {chr(65 + n % 26)}{n}" if kind[n] < 2 else f"Other {n}"
                for n in number
            ],
            "born": [f"{1 + n % 28}.1.19{50 + n % 40}" for n in number],
            "tel": [f"079{n:07d}" for n in number],
            "iron": signal,
            "zinc": draw.normal(size=rows),
        }
    )
    strangers = lab.iloc[:10].assign(
        mail=[f"s{n}@z.org" for n in range(10)],
        full_name=[f"Stranger {n}" for n in range(10)],
        tel=[f"078{n:07d}" for n in range(10)],
    )
    return {
        "clinic": clinic,
        "lab": pd.concat([strangers, lab.iloc[::-1]], ignore_index=True),
    }


def settings(**more: Any) -> dict[str, Any]:
    parties: dict[str, dict[str, Any]] = {
        "clinic": {"label": "ill"},
        "lab": {"id": OWN},
    }
    for name, own in more.pop("parties", {}).items():
        parties[name] = {**parties[name], **own}
    return {
        "algorithm": {"name": "vimadmm"},
        "data": DATA,
        "alignment": {"rules": RULES, **more.pop("alignment", {})},
        "model": {"name": "linear", "width": 2},
        "train": {"epochs": 2, "batch_size": 32},
        "parties": parties,
        "federation": {"device": "cpu", "cohort": "off"},
        **more,
    }
