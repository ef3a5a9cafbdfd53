"""Logistic regression whose gradients are encrypted: the same model, and what each side
can and cannot read or ask. That it is scikit-learn's optimum is in
`test_logistic_regression.py`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.test_algorithm_checkpoints import load, save
from tests.conformance.toy import (
    TRANSPORTS,
    Toy,
    assert_bit_equal,
    federation,
    sequential,
)
from tests.federation.small import frames, quick
from tests.federation.small_sites import ALONE, folders, sites

from colonnade import Federation
from colonnade.algorithms import logistic_regression
from colonnade.algorithms.encrypted_columns import Multiply, Product, UseKey
from colonnade.algorithms.logistic_regression import Config, Move
from colonnade.core import Ciphertext, Released
from colonnade.encryption import make_keys
from colonnade.encryption.scheme import join_parts, split_parts, wrap
from colonnade.errors import BoundaryError, ConfigError, PartyError, WireError
from colonnade.planning.plan import plan
from colonnade.settings.federation_file import Settings
from colonnade.sites.driving import drive
from colonnade.transport import Recording

BATCH = "train/0/0"


def made(encryption: Any = "bfv", aggregation: Any = "plain", **settings: Any) -> Toy:
    given: dict[str, Any] = {
        "config": Config(encryption=encryption, aggregation=aggregation),
        "task": "binary",
    }
    return federation(
        logistic_regression.ALGORITHM, **(given | {"columns": (3, 3)} | settings)
    )


def recorded(**settings: Any) -> Toy:
    return made(transport=lambda parties: Recording(sequential(parties)), **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"aggregation": "secure"}, {"driver": "ada"}], ids=str
)
def test_each_step_is_the_plain_one_up_to_rounding(settings: dict[str, Any]) -> None:
    """Gradients and columns are rounded to 2^-22 of their limits: of a coefficient that
    is less than 1e-6."""
    encrypted = made(**settings)
    plain = made("none", **{k: v for k, v in settings.items() if k == "driver"})
    assert encrypted.run(3) == pytest.approx(plain.run(3), abs=1e-6)
    for name, party in plain.parties.items():
        assert float((party.w - encrypted.parties[name].w).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("rows", "values"),
    [(100, 0.01), (9000, 1.0), pytest.param(60_000, 30.0, marks=pytest.mark.long)],
)
def test_the_error_is_what_the_key_says_it_is_for_few_and_many_rows_of_any_size(
    rows: int, values: float
) -> None:
    """A party scales its columns so that they fit; the limit of a label owner's
    gradients is its key's."""
    toy = made(columns=(1,))
    party = toy.parties["ada"]
    chance = torch.Generator().manual_seed(0)
    x = values * torch.randn(rows, 2, generator=chance, dtype=torch.float64)
    g = torch.rand(rows, 1, generator=chance, dtype=torch.float64) * 2 - 1
    secret = make_keys("bfv", use="columns", limit=4.0)
    party._key = secret.public
    party.x = lambda _: x
    party.rows = lambda _: torch.arange(rows)
    party.model = torch.nn.Linear(2, 1, bias=False)
    product = party.multiply(
        Multiply(BATCH, toy.driver.outbox.encrypt(g, "gradient", key=secret)),
        "label owner",
    )
    scale = party._blinded[BATCH][0]
    opened = toy.driver.outbox.pass_on(
        secret.open_blinded(product.gradient.encrypted), "column_gradient"
    )
    found = party.unmasked(BATCH, opened)
    worst = scale * secret.public.product_error(x / scale)
    assert float((found - x.T @ g).abs().max()) <= worst
    assert worst / (rows * values) < 1e-5, "beside the sum that it is of"


def test_nothing_of_labels_reaches_a_partner_readable_but_its_own_sums() -> None:
    toy = recorded()
    toy.run(2)
    for transcript in toy.transport.transcripts.values():
        seen = [item for message in transcript for item in message.message.crossing()]
        readable = {item.receipt.name for item in seen if isinstance(item, Released)}
        hidden = {item.receipt.name for item in seen if isinstance(item, Ciphertext)}
        own = transcript.party == "label owner"
        assert readable == ({"logits", "lengths"} if own else {"public_key"})
        assert hidden == (
            {"masked_gradient"} if own else {"gradient", "column_gradient"}
        )
        sums = [item for item in seen if item.receipt.name == "column_gradient"]
        assert {
            len(b"".join(split_parts(item.encrypted.data[8:]))) for item in sums
        } <= {8 * 3}, "a number per column"


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_what_is_said_to_cross_is_what_ledgers_hold(aggregation: str) -> None:
    toy = made(aggregation=aggregation)
    toy.run(1)
    told = logistic_regression.crossing(toy.driver.config)
    # an owner's ledger says what its own rule did
    summed = {"summed (secure aggregation)": "non-private"}
    for number, own in enumerate((toy.parties["ada"], toy.driver)):
        sent = {
            (entry.name, entry.event)
            for entry in own.organisation.ledger.entries
            if entry.direction == "out"
        }
        assert sent == {
            (name, summed.get(event.kind, event.kind))
            for name, event in told[number].items()
        }


def test_the_label_owners_own_role_needs_no_protection_from_it() -> None:
    toy = recorded(driver="ada")
    toy.run(1)
    names = {
        item.receipt.name
        for seen in toy.transport.of("ada")
        for item in seen.message.crossing()
    }
    assert "gradient" in names
    assert "column_gradient" not in names
    crossed = [
        entry
        for entry in toy.driver.ledger.entries
        if entry.direction == "out" and entry.peer != "ada"
    ]
    assert {entry.event for entry in crossed if entry.name == "gradient"} == {
        "encrypted (bfv)"
    }


@pytest.mark.parametrize("carried", ["through bytes", "threads"])
def test_what_carries_the_calls_cannot_change_a_bit(carried: str) -> None:
    one = made()
    other = made(transport=TRANSPORTS[carried])
    assert one.run(2) == other.run(2)
    assert_bit_equal(one.states(), other.states())


def test_saved_and_loaded_it_continues_bit_equal_with_new_keys(tmp_path: Path) -> None:
    whole = made()
    begun = made()
    resumed = made()
    losses = whole.run(3)
    assert begun.run(1) == losses[:1]
    save(begun, tmp_path)
    load(resumed, tmp_path)
    assert resumed.run(2) == losses[1:]
    assert_bit_equal(whole.states(), resumed.states())


def test_between_sites_it_is_the_same(tmp_path: Path) -> None:
    settings = {
        **quick(**ALONE),
        "algorithm": {"name": "logistic_regression", "encryption": "bfv"},
        "train": {"epochs": 3},
    }
    file, _ = folders(tmp_path, frames(220), settings)
    here = Federation.from_toml(file).fit(tmp_path / "here").summary
    there = drive(sites(tmp_path)["clinic"], "run").summary
    assert there["metrics"] == here["metrics"]
    for name in ("clinic", "lab"):
        own, whole = (
            (base / "parties" / name / "coefficients.json").read_text()
            for base in (tmp_path / name / "runs" / "run", tmp_path / "here")
        )
        assert own == whole


def test_the_exact_sum_of_few_rows_tells_all_labels_so_few_rows_are_refused(
    tmp_path: Path,
) -> None:
    """Of 14 rows and one column, of all 2^14 choices of labels only one fits what a
    partner steps with. The same is found of 100 rows and 12 columns by lattice
    reduction, in a second."""
    toy = made(columns=(1,))
    rows = 14
    party = toy.parties["ada"]
    secret = make_keys("bfv", use="columns", limit=4.0)
    x = party.features[:rows].double()
    y = toy.driver.labels[:rows].double()
    party._key = secret.public
    party.x = lambda _: x
    party.rows = lambda _: torch.arange(rows)
    sent = toy.driver.outbox.encrypt((0.5 - y)[:, None], "gradient", key=secret)
    product = party.multiply(Multiply(BATCH, sent), "label owner").gradient.encrypted
    found = party.unmasked(
        BATCH,
        toy.driver.outbox.pass_on(secret.open_blinded(product), "column_gradient"),
    )
    choices = (torch.arange(2**rows)[:, None] >> torch.arange(rows) & 1).double()
    errors = ((0.5 - choices) @ x - found).abs().flatten()
    assert torch.equal(choices[errors.argmin()], y), "it reads every label"
    settings = quick(**ALONE) | {
        "algorithm": {"name": "logistic_regression", "encryption": "bfv"}
    }
    file, _ = folders(tmp_path, frames(100), settings)
    cure = (
        r"columns of 'lab', .* Of 70 training rows .* 128 here.\n    Give more rows or"
        r" fewer columns"
    )
    for begin in (Federation.from_toml, lambda path: plan(Settings.from_toml(path))):
        with pytest.raises(ConfigError, match=cure):
            begin(file)
    with pytest.raises(ConfigError, match=cure):
        drive(sites(tmp_path)["clinic"], "run")


def test_a_resumed_run_opens_no_other_number_of_columns(tmp_path: Path) -> None:
    """What a partner says it has is kept with the run: a second number would be as many
    sums more."""
    begun = made()
    other = made(columns=(4, 3))
    begun.run(1)
    save(begun, tmp_path)
    state = begun.driver.state()
    assert state["columns"] == {"ada": 3, "bob": 3}
    with pytest.raises(
        ConfigError,
        match="'ada' says that it has 4 columns, and this run began with 3 of it",
    ):
        other.driver.load_state(state)
    silent = made()
    silent.driver.opening.columns = {}
    with pytest.raises(
        PartyError, match=r"it sent products \[1, 3\], and \[1, 0\] are opened"
    ):
        silent.run(1)


def test_a_lying_partner_gets_no_more_numbers_opened_than_it_has_columns() -> None:
    """It may ask for what it likes in their place, and each round for so many: that is
    said. But not for more, not for what is under no mask, and not for what another key
    encrypted."""
    toy = made()
    toy.run(1)
    driver, opening = toy.driver, toy.driver.opening
    g = driver.outbox.encrypt(
        driver.gradient(BATCH, driver.o[driver.rows(BATCH)]),
        "gradient",
        BATCH,
        key=opening.secret,
    )
    lab = toy.parties["ada"].outbox
    key = opening.secret.public
    identity = torch.eye(160, dtype=torch.float64)

    def sent(columns: Any, **changes: Any) -> Product:
        blinded, _ = key.blind(key.product(g.encrypted, columns, owner="ada"))
        return Product(
            lab.pass_on(
                dataclasses.replace(blinded, **changes), "masked_gradient", BATCH
            )
        )

    assert opening.opened("ada", g, sent(identity[:, :3])).shape == (1, 3)
    for columns in (identity, identity[:, :4]):
        with pytest.raises(
            PartyError,
            match=r"'ada' .* it sent products \[1, (4|160)\], and \[1, 3\] are opened",
        ):
            opening.opened("ada", g, sent(columns))
    with pytest.raises(WireError, match=r"damaged|no mask"):
        opening.opened("ada", g, sent(identity[:, :3], hides="encrypted"))
    unmasked = Product(
        lab.pass_on(
            key.product(g.encrypted, identity[:, :3], owner="ada"),
            "masked_gradient",
            BATCH,
        )
    )
    with pytest.raises(WireError, match="under no mask"):
        opening.opened("ada", g, unmasked)
    body = key.blind(key.product(g.encrypted, identity[:, :3], owner="ada"))[0].data[8:]
    many = join_parts([part for part in split_parts(body) for _ in range(4)])
    stuffed = wrap(key, (1, 3), "product", 1.0, many, "blinded")
    with pytest.raises(
        WireError, match="4 ciphertexts are not the products of 1 values with 3 columns"
    ):
        opening.opened(
            "ada", g, Product(lab.pass_on(stuffed, "masked_gradient", BATCH))
        )
    other = make_keys("bfv", use="columns", limit=4.0)
    strange = other.public.blind(
        other.public.product(
            other.encrypt(torch.ones(160, 1), owner="ada"), identity[:, :3], owner="ada"
        )
    )
    with pytest.raises(WireError, match="cannot be used with bfv key"):
        opening.opened(
            "ada", g, Product(lab.pass_on(strange[0], "masked_gradient", BATCH))
        )


def test_a_lying_label_owner_cannot_talk_a_partner_out_of_its_mask() -> None:
    """Whatever it asks for leaves under a mask of its own; with a key of its choice, or
    the mask's second use, it would read sums over rows that it picks."""
    toy = made()
    ada = toy.peers["ada"]
    out = toy.driver.outbox
    secret = make_keys("bfv", use="columns", limit=4.0)
    with pytest.raises(PartyError, match="it was not given a key yet"):
        ada.ask(
            Multiply(
                BATCH, out.encrypt(torch.ones(160, 1), "gradient", BATCH, key=secret)
            )
        )
    with pytest.warns(UserWarning, match="encrypts nothing"):
        plain = make_keys("plain", use="products", limit=4.0)
    with pytest.raises(
        BoundaryError,
        match=(
            "of the scheme 'plain' came, and by this party's own settings it is 'bfv'"
        ),
    ):
        ada.ask(UseKey(out.publish(plain.public.to_bytes(), "public_key")))
    toy.run(1)
    with pytest.raises(
        PartyError, match="it was given another key before, and keeps to that"
    ):
        ada.ask(UseKey(out.publish(secret.public.to_bytes(), "public_key")))
    with pytest.raises(
        PartyError,
        match=(
            r"the encrypted gradient has the shape \[3, 1\], and here it is \[160, 1\]"
        ),
    ):
        ada.ask(
            Multiply(
                BATCH,
                out.encrypt(
                    torch.ones(3, 1), "gradient", BATCH, key=toy.driver.opening.secret
                ),
            )
        )
    sent = out.encrypt(
        torch.ones(160, 1), "gradient", BATCH, key=toy.driver.opening.secret
    )
    first, second = (ada.ask(Multiply(BATCH, sent)).gradient for _ in range(2))
    assert first.receipt.event.kind == "blinded (bfv)"
    opened = [
        toy.driver.opening.secret.open_blinded(one.encrypted) for one in (first, second)
    ]
    assert opened[0].data != opened[1].data, "the same sums, under another mask"
    step = Move(BATCH, 0.0, out.pass_on(opened[1], "column_gradient", BATCH))
    with pytest.raises(
        PartyError,
        match="a masked gradient came for batch train/1/0, and it has no mask for it",
    ):
        ada.ask(Move("train/1/0", 0.0, step.gradient))
    ada.ask(step)
    with pytest.raises(
        PartyError,
        match="a masked gradient came for batch train/0/0, and it has no mask for it",
    ):
        ada.ask(step)
    with pytest.raises(
        PartyError, match='a gradient came readable, and its encryption is "bfv"'
    ):
        ada.ask(Move(BATCH, 0.0, out.release(torch.ones(160, 1), "gradient", BATCH)))
    with pytest.raises(
        PartyError, match='it takes no key, since its encryption is "none"'
    ):
        made("none").peers["ada"].ask(
            UseKey(out.publish(secret.public.to_bytes(), "public_key"))
        )


def test_a_mask_is_for_one_answer_also_where_that_fails() -> None:
    """With a step of its choice a label owner has an answer fail, or not: tried again
    under the same mask, it would read a party's own length off where that begins."""
    toy = made(aggregation="secure")
    toy.run(1)
    ada = toy.peers["ada"]
    out = toy.driver.outbox
    secret = toy.driver.opening.secret
    sent = out.encrypt(torch.ones(160, 1), "gradient", BATCH, key=secret)
    opened = secret.open_blinded(ada.ask(Multiply(BATCH, sent)).gradient.encrypted)
    given = out.pass_on(opened, "column_gradient", BATCH)
    with pytest.raises(PartyError, match="has a value that does not fit"):
        ada.ask(Move(BATCH, 1e30, given))
    with pytest.raises(PartyError, match="it has no mask for it"):
        ada.ask(Move(BATCH, 0.0, given))


def test_what_a_ciphertext_or_key_says_of_itself_is_no_question_about_columns() -> None:
    """Refused or not would tell how large the columns are: a bit a call, and by that
    every value of a row."""
    toy = made(columns=(1, 3))
    ada = toy.peers["ada"]
    out = toy.driver.outbox
    tiny = make_keys("bfv", use="columns", limit=2.0**-60)
    with pytest.raises(
        PartyError,
        match=r"its key is for values up to 8\.67362e-19, and gradients are larger",
    ):
        ada.ask(UseKey(out.publish(tiny.public.to_bytes(), "public_key")))
    toy.run(1)
    public = toy.driver.opening.secret.public
    for factor in (0.5, 1.5, 2.0**9):
        sent = public.encrypt(torch.zeros(160, 1), owner="label owner")
        said = wrap(public, (160, 1), "spread", factor * public.limit, sent.data[8:])
        with pytest.raises(
            PartyError, match=r"values up to .* came, and its key is for 4"
        ):
            ada.ask(Multiply(BATCH, out.pass_on(said, "gradient", BATCH)))


def test_secret_keys_are_in_no_state() -> None:
    toy = made()
    toy.run(1)
    assert toy.driver.opening.secret is not None
    assert not [
        name for name in toy.driver.state() if "secret" in name or "key" in name
    ]
