"""The agreed row order: batches cover, names mean the same everywhere, and no other
name means anything."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from colonnade.core import Agreed, Batch, Batches
from colonnade.core.batches import SAMPLINGS, Rows, pieces
from colonnade.errors import ConfigError, WireError

SIZES = st.integers(1, 40)


def made(
    rows: int = 23,
    batch_size: int = 5,
    epochs: int = 3,
    seed: int = 0,
    first: int = 100,
) -> Batches:
    """Row numbers start at `first`, so that a position is never mistaken for a row
    number."""
    train = torch.arange(first, first + rows)
    test = torch.arange(first + rows, first + rows + 9)
    return Batches(
        {"train": train, "test": test}, batch_size=batch_size, epochs=epochs, seed=seed
    )


def epoch(batches: Batches, number: int) -> list[list[int]]:
    return [
        batches.rows(f"train/{number}/{i}").tolist() for i in range(batches.per_epoch)
    ]


@given(
    rows=SIZES,
    batch_size=SIZES,
    epochs=st.integers(0, 4),
    seed=st.integers(-(2**40), 2**40),
)
@settings(max_examples=60)
def test_every_epoch_is_a_disjoint_cover_of_the_training_rows(
    rows: int, batch_size: int, epochs: int, seed: int
) -> None:
    batches = made(rows, batch_size, epochs, seed)
    seen = list(batches)
    assert len(seen) == len(batches) == epochs * batches.per_epoch
    for number in range(epochs):
        names = [batch for batch in seen if batch.epoch == number]
        found = [batches.rows(batch.name) for batch in names]
        assert [len(part) for part in found] == [batch.size for batch in names]
        assert max(batch.size for batch in names) <= batch_size
        assert sorted(torch.cat(found).tolist()) == batches.splits["train"].tolist()


@given(rows=SIZES, batch_size=SIZES, seed=st.integers(0, 2**63))
@settings(max_examples=30)
def test_equal_seeds_give_equal_batches(rows: int, batch_size: int, seed: int) -> None:
    one = made(rows, batch_size, 2, seed)
    other = made(rows, batch_size, 2, seed)
    assert list(one) == list(other)
    # asked for in another order: a name does not depend on history
    assert epoch(one, 1) == epoch(other, 1)
    assert epoch(one, 0) == epoch(other, 0)


def test_other_seeds_and_other_epochs_shuffle_differently() -> None:
    orders = [
        epoch(made(seed=seed), number) for seed in (0, 1, -1, 10) for number in range(3)
    ]
    assert len({str(order) for order in orders}) == len(orders)


def test_the_training_rows_are_shuffled_but_keep_their_multiplicity() -> None:
    batches = Batches(
        {"train": torch.tensor([7, 7, 3])}, batch_size=2, epochs=1, seed=0
    )
    assert sorted(row for rows in epoch(batches, 0) for row in rows) == [3, 7, 7]


def test_steps_count_from_the_start_of_training() -> None:
    batches = list(made(rows=7, batch_size=3, epochs=2))
    assert [batch.step for batch in batches] == list(range(6))
    assert batches[4] == Batch("train/1/1", 3, 1, 1, 4)


@given(rows=SIZES, batch_size=SIZES, stop=st.integers(0, 100))
@settings(max_examples=40)
def test_iteration_continues_from_done(rows: int, batch_size: int, stop: int) -> None:
    whole = list(made(rows, batch_size))
    stop = min(stop, len(whole))
    interrupted = made(rows, batch_size)
    resumed = made(rows, batch_size)
    before = (
        [batch for batch, _ in zip(interrupted, range(stop), strict=False)]
        if stop
        else []
    )
    before = before[:stop]
    resumed.done = stop
    assert before + list(resumed) == whole
    assert resumed.done == len(whole)
    assert list(resumed) == []


def test_a_batch_counts_as_done_once_it_was_handed_out() -> None:
    batches = made()
    iterator = iter(batches)
    assert [next(iterator).step for _ in range(3)] == [0, 1, 2]
    assert batches.done == 3


@given(rows=SIZES, size=st.integers(1, 50), split=st.sampled_from(["train", "test"]))
@settings(max_examples=40)
def test_chunks_cover_a_split_in_order(rows: int, size: int, split: str) -> None:
    batches = made(rows)
    chunks = batches.chunks(split, size)
    found = [batches.rows(chunk.name) for chunk in chunks]
    assert [len(part) for part in found] == [chunk.size for chunk in chunks]
    assert torch.cat(found).tolist() == batches.splits[split].tolist()
    assert all(chunk.size == size for chunk in chunks[:-1])
    assert max(chunk.size for chunk in chunks) <= size


def test_chunks_have_a_size_of_their_own_accord() -> None:
    batches = Batches({"train": torch.arange(10_000)}, batch_size=10, epochs=1, seed=0)
    assert sum(chunk.size for chunk in batches.chunks("train")) == 10_000
    assert len(batches.chunks("train")) == 3


def test_chunks_have_no_more_rows_than_the_asker_can_take_at_once() -> None:
    batches = made(rows=10_000)
    assert batches.chunks("train", most=10**9) == batches.chunks("train")
    assert max(chunk.size for chunk in batches.chunks("train", most=70)) == 70
    assert sum(chunk.size for chunk in batches.chunks("train", most=70)) == 10_000


@given(start=st.integers(0, 50), size=SIZES, most=SIZES, owner=st.booleans())
def test_pieces_are_the_same_rows_under_more_names(
    start: int, size: int, most: int, owner: bool
) -> None:
    prefix = "clinic:" if owner else ""
    whole = Rows(f"{prefix}test[{start}:{start + size}]", size)
    parts = pieces(whole, most)
    assert sum(part.size for part in parts) == size
    assert max(part.size for part in parts) <= most
    at = start
    for part in parts:
        assert part.name == f"{prefix}test[{at}:{at + part.size}]"
        at += part.size


def test_there_are_no_chunks_of_rows_that_are_not_there() -> None:
    with pytest.raises(
        ConfigError, match=r"no rows called 'holdout'; there are 'train', 'test'"
    ):
        made().chunks("holdout")


@pytest.mark.parametrize("empty", ["train", "test"])
def test_a_split_has_rows_or_is_not_there(empty: str) -> None:
    splits = {"train": torch.arange(3), "test": torch.arange(3)} | {
        empty: torch.arange(0)
    }
    with pytest.raises(ConfigError, match=f"The split '{empty}' has no rows"):
        Batches(splits, batch_size=2, epochs=1, seed=0)


def test_without_training_rows_there_is_nothing_to_train_on_but_all_to_look_up() -> (
    None
):
    batches = Batches({"test": torch.arange(3)}, batch_size=2, epochs=1, seed=0)
    assert len(batches) == 0
    assert list(batches) == []
    assert batches.rows("test[1:3]").tolist() == [1, 2]
    with pytest.raises(WireError):
        batches.rows("train/0/0")


BAD = [
    "",
    "train",
    "train/",
    "train/0",
    "train/0/",
    "train/0/5",
    "train/0/999999999",
    "train/-1/0",
    "train/0/-1",
    "train/0/0/",
    "train/0/0\n",
    " train/0/0",
    "train/0/0.0",
    "train/00/0",
    "train/0/00",
    "train/٣/0",
    "train/0/٠",
    "train/1e1/0",
    "train/0x1/0",
    "train/" + "9" * 5000 + "/0",
    "train/0/" + "9" * 5000,
    "Train/0/0",
    "test/0/0",
    "test[]",
    "test[:]",
    "test[0:0]",
    "test[3:2]",
    "test[0:10]",
    "test[9:10]",
    "test[-1:2]",
    "test[0:-1]",
    "test[00:2]",
    "test[0:02]",
    "test[٠:٢]",
    "test[0:2]\n",
    "test[0:2",
    "test0:2]",
    "test[0:" + "9" * 5000 + "]",
    "holdout[0:1]",
    "../test[0:1]",
    "[0:1]",
    "test[0:1]test[1:2]",
    "train[0:24]",
    "\0",
    "train/0/0\0",
]


@pytest.mark.parametrize("name", BAD, ids=range(len(BAD)))
def test_a_name_that_no_batch_has_is_refused(name: str) -> None:
    with pytest.raises(WireError, match="No agreed batch is called") as caught:
        made().rows(name)
    assert len(str(caught.value)) < 500


@given(
    name=st.one_of(
        st.text(max_size=30),
        st.from_regex(r"(train|test)[/\[]\d{0,3}[/:]\d{0,3}\]?", fullmatch=True),
        st.from_regex(r"(train|test)\[[0-9]{1,2}:[0-9]{1,2}\]", fullmatch=True),
        st.from_regex(r"train/[0-2]/[0-9]{1,2}", fullmatch=True),
    )
)
@settings(max_examples=100)
def test_a_name_is_refused_or_it_is_the_only_name_of_its_rows(name: str) -> None:
    batches = made()
    try:
        rows = batches.rows(name)
    except WireError:
        return
    split = "test" if name.startswith("test") else "train"
    assert 0 < len(rows) <= len(batches.splits[split])
    assert set(rows.tolist()) <= set(batches.splits[split].tolist())
    assert name.isascii()
    if "[" in name:
        start, stop = name[len(split) + 1 : -1].split(":")
        assert name == f"{split}[{int(start)}:{int(stop)}]"
        assert rows.tolist() == batches.splits[split].tolist()[int(start) : int(stop)]
    else:
        _, epoch_, number = name.split("/")
        assert name == f"train/{int(epoch_)}/{int(number)}"
        assert int(number) < batches.per_epoch


def test_old_epochs_can_be_asked_for_again() -> None:
    batches = made()
    first = epoch(batches, 0)
    for number in range(1, 9):
        epoch(batches, number)
    assert epoch(batches, 0) == first
    assert len(batches._shuffled) <= 4  # and they are not all kept


def test_parties_in_threads_may_share_the_batches() -> None:
    batches = made(rows=3, batch_size=2)
    failures = list[BaseException]()

    def ask(offset: int) -> None:
        try:
            for number in range(300):
                batches.rows(f"train/{(number + offset) % 7}/0")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


ROWS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
AGREEMENT = st.fixed_dictionaries(
    {
        "splits": st.dictionaries(
            st.sampled_from(["validation", "test", "holdout"]), ROWS, max_size=3
        ),
        "train": ROWS,
        "batch_size": st.integers(1, 12),
        "seed": st.integers(0, 12),
    }
)


def agreed(of: dict[str, object], order: int = 1) -> Batches:
    splits = {"train": of["train"], **of["splits"]}  # type: ignore[dict-item]
    tensors = {
        name: torch.tensor(rows, dtype=torch.int64)
        for name, rows in list(splits.items())[::order]
    }
    return Batches(tensors, batch_size=of["batch_size"], epochs=1, seed=of["seed"])  # type: ignore[arg-type]


@given(one=AGREEMENT, other=AGREEMENT)
@settings(max_examples=150)
def test_a_fingerprint_is_equal_exactly_where_all_was_agreed(
    one: dict[str, object], other: dict[str, object]
) -> None:
    assert agreed(one).fingerprint() == agreed(one, order=-1).fingerprint()
    assume(one != other)
    assert agreed(one).fingerprint() != agreed(other).fingerprint()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("batch_size", 11),
        ("seed", 2),
        ("train", [0, 2, 1]),
        ("splits", {"test": [3, 4]}),
        ("splits", {"holdout": [3]}),
    ],
)
def test_each_part_of_the_agreement_is_in_the_fingerprint(
    change: str, value: object
) -> None:
    base: dict[str, object] = {
        "train": [0, 1, 2],
        "splits": {"test": [3]},
        "batch_size": 1,
        "seed": 1,
    }
    assert agreed(base).fingerprint() == agreed(dict(base)).fingerprint()
    assert agreed(base).fingerprint() != agreed(base | {change: value}).fingerprint()


def test_the_fingerprint_does_not_depend_on_the_type_of_row_numbers() -> None:
    small = Batches(
        {"train": torch.arange(3, dtype=torch.int32)}, batch_size=1, epochs=1, seed=0
    )
    large = Batches({"train": torch.arange(3)}, batch_size=1, epochs=1, seed=0)
    assert small.fingerprint() == large.fingerprint()
    assert small.rows("train/0/0").dtype == torch.int64


def test_without_reshuffling_every_epoch_has_the_first_one_s_batches() -> None:
    splits = {"train": torch.arange(10)}
    fixed = Batches(splits, batch_size=4, epochs=3, seed=1, reshuffle=False)
    moving = Batches(splits, batch_size=4, epochs=3, seed=1)
    for number in range(3):
        assert torch.equal(
            fixed.rows(f"train/0/{number}"), moving.rows(f"train/0/{number}")
        )
        assert torch.equal(
            fixed.rows(f"train/2/{number}"), fixed.rows(f"train/0/{number}")
        )
    assert fixed.fingerprint() != moving.fingerprint()


def of(owner: str, rows: int = 6, seed: int = 0) -> Batches:
    splits = {"train": torch.arange(rows), "test": torch.arange(rows, rows + 3)}
    return Batches(splits, batch_size=4, epochs=2, seed=seed, owner=owner)


def test_names_say_whose_a_batch_is() -> None:
    mine = of("clinic")
    nobody = of("")
    assert [batch.name for batch in mine] == [
        f"clinic:{batch.name}" for batch in nobody
    ]
    assert [chunk.name for chunk in mine.chunks("test", 2)] == [
        "clinic:test[0:2]",
        "clinic:test[2:3]",
    ]
    assert torch.equal(mine.rows("clinic:train/1/0"), nobody.rows("train/1/0"))
    assert torch.equal(mine.rows("clinic:test[0:2]"), nobody.rows("test[0:2]"))
    for batches, name in (
        (mine, "train/0/0"),
        (mine, "lab:train/0/0"),
        (nobody, "clinic:train/0/0"),
        (mine, "clinic:"),
    ):
        with pytest.raises(WireError, match="No agreed batch"):
            batches.rows(name)
    assert len({mine.fingerprint(), nobody.fingerprint(), of("lab").fingerprint()}) == 3


def test_an_epoch_is_its_batches_one_after_the_other() -> None:
    batches = of("clinic", rows=10)
    listed = batches.of_epoch(1)
    assert listed == [batch for batch in batches if batch.epoch == 1]
    assert torch.equal(
        batches.epoch_rows(1), torch.cat([batches.rows(batch.name) for batch in listed])
    )


def test_a_data_owner_looks_up_the_rows_of_each_label_owner_in_its_own_table() -> None:
    a = of("a")
    b = of("b", rows=5, seed=1)
    orders = {
        "a": torch.tensor([9, 8, 7, 6, 5, 4, 3, 2, 1]),
        "b": torch.tensor([9, 20, 21, 22, 23, 24, 25, 26]),
    }
    agreed = Agreed({"a": (a, orders["a"]), "b": (b, orders["b"])})
    assert (list(agreed), len(agreed), agreed["b"] is b) == (["a", "b"], 2, True)
    for owner, batches in (("a", a), ("b", b)):
        for name in (f"{owner}:train/0/1", f"{owner}:test[1:3]"):
            assert torch.equal(agreed.rows(name), orders[owner][batches.rows(name)])
        assert torch.equal(
            agreed.epoch_rows(owner, 1), orders[owner][batches.epoch_rows(1)]
        )
    assert agreed.splits["train"].tolist() == [4, 5, 6, 7, 8, 9, 20, 21, 22, 23]
    assert agreed.splits["test"].tolist() == [1, 2, 3, 24, 25, 26]
    assert (agreed.batch_size, agreed.per_epoch) == (4, 4)
    for name in ("c:train/0/0", "train/0/0", "a:train/0/9", "test[0:2]"):
        with pytest.raises(WireError, match="No agreed batch"):
            agreed.rows(name)
    moved = Agreed({"a": (a, orders["a"].flip(0)), "b": (b, orders["b"])})
    assert moved.fingerprint() != agreed.fingerprint()


def test_agreed_batches_are_those_of_the_label_owner() -> None:
    with pytest.raises(ConfigError, match="agreed on with 'b' are those of 'a'"):
        Agreed({"b": (of("a"), torch.arange(9))})


def sampled(
    sampling: str, rows: int = 400, batch_size: int = 50, epochs: int = 25
) -> Batches:
    train = torch.arange(100, 100 + rows)
    return Batches(
        {"train": train},
        batch_size=batch_size,
        epochs=epochs,
        seed=0,
        sampling=sampling,
    )


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_sampled_batches_are_drawn_anew_from_all_rows(sampling: str) -> None:
    """Every row as often as the others on average, and some twice in an epoch, which
    amplification is about."""
    batches = sampled(sampling)
    again = sampled(sampling)
    found = [batches.rows(batch.name) for batch in batches]
    assert len(found) == 25 * 8
    assert [batch.size for batch in again] == [len(rows) for rows in found]
    assert all(
        torch.equal(again.rows(f"train/{at // 8}/{at % 8}"), rows)
        for at, rows in enumerate(found)
    )
    assert all(len(set(rows.tolist())) == len(rows) for rows in found)
    counts = torch.bincount(torch.cat(found))[100:]
    assert torch.equal(counts, batches.appearances(25))
    assert batches.most_often() == counts.max() > 25
    assert len(counts) == 400
    # binomial: 200 draws of 1/8 have a variance of 22
    assert 3 < counts.float().var() < 40
    assert (
        max(len(set(torch.cat(found[at : at + 8]).tolist())) for at in range(0, 200, 8))
        < 400
    )


def test_poisson_batches_vary_in_size_and_others_do_not() -> None:
    sizes = torch.tensor([float(batch.size) for batch in sampled("poisson")])
    assert abs(sizes.mean() - 50) < 2
    assert 5 < sizes.std() < 8.5  # sqrt(400 x 1/8 x 7/8) = 6.6
    assert {batch.size for batch in sampled("without_replacement")} == {50}
    # an empty one is drawn again
    assert all(batch.size for batch in sampled("poisson", rows=4, batch_size=1))


def test_how_batches_are_drawn_is_agreed_on() -> None:
    assert len({sampled(sampling).fingerprint() for sampling in SAMPLINGS}) == 3
    assert (
        sampled("epoch").fingerprint()
        == Batches(
            sampled("epoch").splits, batch_size=50, epochs=25, seed=0
        ).fingerprint()
    )
