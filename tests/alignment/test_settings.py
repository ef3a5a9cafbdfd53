"""The [alignment] table."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.alignment import AlignmentSettings
from colonnade.errors import ConfigError
from colonnade.federation import Settings


def test_all_learn_unless_some_are_named() -> None:
    parties = ("clinic", "lab", "bank")
    assert AlignmentSettings().learners_among(parties) == parties
    assert AlignmentSettings(learners=("bank", "clinic")).learners_among(parties) == (
        "clinic",
        "bank",
    )


def test_a_learner_must_take_part() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "learners names 'labb', which is no party here; there are 'clinic', 'lab'"
        ),
    ):
        AlignmentSettings(learners=("labb",)).learners_among(("clinic", "lab"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"ids": "fuzzy"},
            r'\[alignment\] ids must be one of "exact", "normalised"; found \'fuzzy\'',
        ),
        ({"duplicates": "last"}, 'duplicates must be one of "refuse", "first"'),
        ({"reveal": "all"}, 'reveal must be one of "rows", "count"'),
        (
            {"learners": "clinic"},
            (
                r"\[alignment\] learners must be a list of party names, each once;"
                r" found 'clinic'"
            ),
        ),
        ({"id": ["name", "born"]}, r"\[alignment\] has no setting .id."),
        ({"rules": 3}, r"\[alignment\] rules must be a table"),
        (
            {"rules": {"id": "fone"}},
            r"\[alignment.rules\] id must be one of exact, text, .*found 'fone'.*phone",
        ),
        (
            {"rules": {"mail": "email"}},
            (
                r"\[alignment.rules\] has 'mail', which is in no key of \[data\] id;"
                r" there are id"
            ),
        ),
        ({"match": "exact"}, r"\[alignment\] has no setting 'match'"),
    ],
)
def test_a_bad_setting_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_mapping({"alignment": wrong})


def test_a_federation_file_holds_them() -> None:
    given = {
        "rules": {"id": "code"},
        "ids": "normalised",
        "duplicates": "first",
        "learners": ["clinic"],
    }
    settings = Settings.from_mapping({"alignment": given})
    assert settings.alignment == AlignmentSettings(
        ids="normalised",
        rules={"id": "code"},
        duplicates="first",
        reveal="rows",
        learners=("clinic",),
    )
    assert settings.to_mapping()["alignment"] == given | {
        "reveal": "rows",
        "protocol": "ecdh",
    }
    assert Settings.from_mapping(settings.to_mapping()) == settings
    assert "alignment" not in Settings.from_mapping({}).to_mapping()


def test_a_run_continues_whatever_an_alignment_may_do_but_with_the_same_ids() -> None:
    changed = Settings.from_mapping({"alignment": {"reveal": "count"}})
    changed.check_continues(Settings.from_mapping({}))
    Settings.from_mapping({}).check_continues(changed)
    normalised = Settings.from_mapping({"alignment": {"ids": "normalised"}})
    with pytest.raises(
        ConfigError, match=r"\[alignment\] ids is 'normalised' now and was 'exact'"
    ):
        normalised.check_continues(changed)
    with pytest.raises(
        ConfigError, match=r"\[alignment\] ids is 'exact' now and was 'normalised'"
    ):
        changed.check_continues(normalised)
    with pytest.raises(
        ConfigError, match=r"\[data\] align is 'private' now and was 'exact'"
    ):
        Settings.from_mapping({"data": {"align": "private"}}).check_continues(changed)
