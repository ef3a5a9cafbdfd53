"""Boosted trees are those of a centralized booster, whoever holds the columns and
whether or not gradients are read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms import central_trees
from tests.conformance.toy import Toy, assert_bit_equal, federation
from torch import Tensor

from colonnade.algorithms import boosted_trees, tree_learning, tree_owner
from colonnade.algorithms.boosted_trees import ALGORITHM, Config
from colonnade.core import Batches, Organisation, Peers, roles
from colonnade.errors import ConfigError, DataError
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.optim.losses import balanced as balanced_weights
from colonnade.transport import InProcess


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="boosted_trees without encryption")
        yield


def between(
    parts: dict[str, Tensor],
    y: Tensor,
    config: Config,
    *,
    loss: Loss | None = None,
    rounds: int = 4,
    seed: int = 0,
) -> Toy:
    """Parties with these columns; 'bank' holds the labels, and columns where it has a
    part. The last rows are tests."""
    rows = len(y)
    order = torch.arange(rows)
    train = rows * 3 // 4
    batches = Batches(
        {"train": order[:train], "test": order[train:]},
        batch_size=train,
        epochs=rounds,
        seed=seed,
    )
    organisations = {
        name: Organisation.at(name, batches, seed=seed) for name in {*parts, "bank"}
    }
    parties: dict[str, Any] = {
        name: tree_owner.FeatureOwner(
            organisations[name], x, torch.nn.Flatten(), config
        )
        for name, x in parts.items()
    }
    driver = boosted_trees.LabelOwner(
        organisations["bank"], y, loss or Logistic(), config
    )
    carrier = InProcess(parties, parallel="never")
    driver.peers = Peers("bank", parties, carrier, driver.ledger)
    driver.meet(driver.peers.ask(roles.Introduce()))
    return Toy(ALGORITHM, driver, driver.peers, batches, parties, carrier)


def table(
    rows: int = 240, columns: int = 6, gaps: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x[:, 1] = (x[:, 1] * 2).round()  # few values
    score = x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * torch.randn(rows, generator=generator)
    if gaps:
        x[torch.rand(x.shape, generator=generator) < gaps] = torch.nan
    return x, (score > 0).long()


PLAIN = Config(
    encryption="none",
    gradient_bits=0,
    min_rows=1,
    min_child_weight=0.0,
    learning_rate=0.3,
    depth=3,
)


@pytest.mark.parametrize("gaps", [0.0, 0.15])
def test_unrounded_it_is_the_centralized_booster_split_by_split(gaps: float) -> None:
    x, y = table(gaps=gaps)
    toy = between({"bank": x[:, :2], "lab": x[:, 2:5], "shop": x[:, 5:]}, y, PLAIN)
    toy.run()
    train = toy.batches.splits["train"]
    trees, scores = central_trees.boosted(
        x[train].double().numpy(),
        y[train].numpy(),
        4,
        bins=PLAIN.bins,
        depth=3,
        l2=PLAIN.l2,
        rate=0.3,
    )
    assert np.allclose(
        toy.driver.scores[train][:, 0].numpy(), scores, rtol=0, atol=1e-9
    )
    for tree, found in zip(trees, toy.driver.rounds, strict=True):
        nodes = [tree]
        for node in nodes:
            nodes += node.children
        assert len(nodes) == len(found["party"])
        values = sorted(node.value for node in nodes if not node.children)
        assert np.allclose(
            values, sorted(found["value"][found["party"] < 0].tolist()), atol=1e-9
        )


def test_who_holds_which_column_does_not_matter() -> None:
    x, y = table(gaps=0.1)
    alone = between({"bank": x}, y, PLAIN)
    spread = between({"lab": x[:, 3:], "shop": x[:, :3]}, y, PLAIN)
    losses = alone.run(), spread.run()
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


@pytest.mark.parametrize(
    "loss", [Logistic(), Squared()], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize(
    "more", [{}, {"row_share": 0.6, "column_share": 0.7}, {"goss_top": 0.2}], ids=str
)
def test_encrypted_it_is_the_same_bit_by_bit(loss: Loss, more: dict[str, Any]) -> None:
    x, y = table(gaps=0.1)
    labels = y if isinstance(loss, Logistic) else x[:, 0].nan_to_num() - y
    parts = {"bank": x[:, :2], "lab": x[:, 2:]}
    settings: dict[str, Any] = {"depth": 2, "bins": 8, "learning_rate": 0.3, **more}
    plain, sealed = (
        between(parts, labels, Config(encryption=how, **settings), loss=loss, rounds=3)
        for how in ("none", "elgamal")
    )
    assert plain.run() == sealed.run()
    assert_bit_equal(plain.states(), sealed.states())
    assert torch.equal(plain.predict(), sealed.predict())


def test_encrypted_several_classes_are_the_same_bit_by_bit() -> None:
    plain, sealed = (
        federation(
            ALGORITHM, task="classes", config=Config(encryption=how, depth=2, bins=6)
        )
        for how in ("none", "elgamal")
    )
    assert plain.run(2) == sealed.run(2)
    assert_bit_equal(plain.states(), sealed.states())


def test_hidden_nodes_give_the_same_trees_and_are_not_told() -> None:
    x, y = table(gaps=0.1)
    parts = {"bank": x[:, :2], "lab": x[:, 2:]}
    settings: dict[str, Any] = {
        "depth": 3,
        "bins": 8,
        "learning_rate": 0.3,
        "min_rows": 1,
        "row_share": 0.8,
    }
    shown, hidden = (
        between(parts, y, Config(nodes=how, **settings), rounds=2)
        for how in ("shown", "hidden")
    )
    assert shown.run() == pytest.approx(hidden.run(), abs=1e-12)
    train = shown.batches.splits["train"]
    assert torch.allclose(
        shown.driver.scores[train], hidden.driver.scores[train], atol=1e-12
    )
    assert torch.allclose(
        hidden.predict("train"), hidden.driver.scores[train].float(), atol=1e-6
    )
    told = [
        {e.name for e in toy.parties["lab"].ledger.entries if e.direction == "in"}
        for toy in (shown, hidden)
    ]
    assert told[0] == {"public_key", "gradients", "splits", "nodes", "sample"}
    assert told[1] == {"public_key", "gradients", "splits"}
    assert {
        e.shape[0]
        for e in hidden.parties["lab"].ledger.entries
        if e.name == "gradients"
    } == {len(train)}


@pytest.mark.parametrize(
    ("encryption", "idle"), [("none", "idle"), ("elgamal", "bank"), ("elgamal", "idle")]
)
def test_a_party_whose_columns_never_change_changes_no_tree(
    encryption: Any, idle: str
) -> None:
    """It has no way to part rows to offer, and says so with sums of no columns."""
    x, y = table(rows=80)
    config = Config(encryption=encryption, depth=2)
    alone = between({"shop": x}, y, config, rounds=1)
    beside = between({"shop": x, idle: torch.ones(len(x), 2)}, y, config, rounds=1)
    assert alone.run() == beside.run()


def test_a_prediction_is_where_training_left_the_row() -> None:
    x, y = table(gaps=0.1)
    toy = between(
        {"bank": x[:, :2], "lab": x[:, 2:]}, y, Config(encryption="none", depth=3)
    )
    toy.run()
    train = toy.batches.splits["train"]
    assert torch.allclose(
        toy.predict("train"), toy.driver.scores[train].float(), atol=1e-6
    )


def test_gradients_leave_encrypted_and_a_party_takes_no_others() -> None:
    x, y = table()
    toy = between({"bank": x[:, :2], "lab": x[:, 2:]}, y, Config(depth=2, bins=4))
    toy.run(1)
    sent = {
        e.name: e.event
        for e in toy.driver.ledger.entries
        if e.direction == "out" and e.peer == "lab"
    }
    assert sent["gradients"] == "encrypted (elgamal)"
    assert "hessians" not in sent
    told = between(
        {"bank": x[:, :2], "lab": x[:, 2:]}, y, Config(encryption="none", depth=2)
    )
    told.parties["lab"].config = Config()
    with pytest.raises(
        Exception,
        match=(
            r"'lab' .* gradients came in the clear, and by its own settings they"
            r" are enc"
        ),
    ):
        told.run(1)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="only whole numbers can be encrypted"):
        Config(gradient_bits=0)
    with pytest.raises(
        ConfigError, match=r"above 0, and both at most 1 together; found 0.9"
    ):
        Config(goss_top=0.5, goss_rest=0.9)
    assert Config(goss_top=0.9).goss_rest == 0.1  # together 1, however floats round it
    with pytest.raises(ConfigError, match="hides nodes behind encrypted gradients"):
        Config(encryption="none", nodes="hidden")
    x, y = table()
    with pytest.raises(
        ConfigError, match='loss = "poisson" is for labels that are numbers'
    ):
        between({"bank": x}, y, Config(loss="poisson"))


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
def test_one_party_alone_is_as_good_as_scikit_learns(loss: Any) -> None:
    """The training loss is within 1 % of HistGradientBoosting's with the same bins,
    depth, rate and penalty."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, _ = table(rows=480)
    x = (x * 4).round() / 4  # so few values that both have a bin for each
    generator = torch.Generator().manual_seed(1)
    rate = (x[:, 0] / 2 - x[:, 1] * x[:, 2] / 4).exp()
    y = torch.poisson(rate, generator=generator) if loss == "poisson" else rate
    config = PLAIN.changed(loss=loss, depth=3, learning_rate=0.1)
    toy = between({"bank": x}, y, config, loss=Squared(), rounds=40)
    toy.run()
    train = toy.batches.splits["train"]
    words = {
        "squared": "squared_error",
        "absolute": "absolute_error",
        "poisson": "poisson",
    }
    theirs = HistGradientBoostingRegressor(
        loss=words[loss],
        max_iter=40,
        max_depth=3,
        max_leaf_nodes=None,
        max_bins=config.bins,
        min_samples_leaf=1,
        l2_regularization=config.l2,
        learning_rate=0.1,
        early_stopping=False,
    ).fit(x[train].numpy(), y[train].numpy())
    ours = toy.predict("train")[:, 0].double()
    central = torch.from_numpy(theirs.predict(x[train].numpy()))

    def error(guess: Tensor) -> float:
        truth = y[train].double()
        each = {
            "squared": (guess - truth).square(),
            "absolute": (guess - truth).abs(),
            "poisson": guess - truth * guess.clamp_min(1e-9).log(),
        }
        return float(each[loss].mean())

    assert error(ours) <= 1.01 * error(central)
    if loss != "absolute":  # where scikit-learn's medians leave more
        assert error(ours) == pytest.approx(error(central), rel=0.01)


@pytest.mark.parametrize("weights", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("classes", [2, 3])
def test_one_party_alone_tells_classes_as_well_as_scikit_learns(
    classes: int, weights: bool
) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, _ = table(rows=480)
    x = (x * 4).round() / 4
    generator = torch.Generator().manual_seed(1)
    score = x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * torch.randn(len(x), generator=generator)
    y = torch.bucketize(score, torch.tensor([0.0, 1.5][: classes - 1]))
    loss = Logistic() if classes == 2 else CrossEntropy(3)
    counts = torch.rand(len(x), generator=generator, dtype=torch.float64) * 2
    config = PLAIN.changed(learning_rate=0.1, min_child_weight=0.001)
    toy = between({"bank": x}, y, config, loss=loss, rounds=30)
    toy.driver.row_weights = counts if weights else None
    toy.run()
    train = toy.batches.splits["train"]
    theirs = HistGradientBoostingClassifier(
        max_iter=30,
        max_depth=3,
        max_leaf_nodes=None,
        max_bins=config.bins,
        min_samples_leaf=1,
        l2_regularization=config.l2,
        learning_rate=0.1,
        early_stopping=False,
    ).fit(
        x[train].numpy(), y[train].numpy(), counts[train].numpy() if weights else None
    )
    central = torch.from_numpy(theirs.decision_function(x[train].numpy())).reshape(
        len(train), -1
    )
    rows = counts[train] if weights else None
    ours, others = (
        float(loss(some.double(), y[train], rows))
        for some in (toy.predict("train"), central)
    )
    assert ours == pytest.approx(others, rel=0.01)


@pytest.mark.parametrize("loss", ["auto", "squared", "absolute", "poisson"])
def test_a_weight_of_two_is_a_row_twice_and_of_none_no_row(loss: Any) -> None:
    x, y = table()
    x = (x * 2).round() / 2  # so few values that both have a bin for each
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(3, (len(x),), generator=generator)
    train = len(x) * 3 // 4
    # so that as many are a quarter of the rows
    counts[0] += (-int(counts[:train].sum())) % 3
    often = torch.arange(train).repeat_interleave(counts[:train])
    every = torch.cat([often, torch.zeros(len(often) // 3, dtype=torch.int64)])
    labels = (
        y
        if loss == "auto"
        else torch.poisson(
            (x[:, 0] / 2 - x[:, 1] * x[:, 2] / 4).exp(), generator=generator
        )
    )
    config = PLAIN.changed(loss=loss)
    of = Logistic() if loss == "auto" else Squared()
    weighted = between({"bank": x[:, :3], "lab": x[:, 3:]}, labels, config, loss=of)
    weighted.driver.row_weights = counts.double()
    repeated = between(
        {"bank": x[every, :3], "lab": x[every, 3:]}, labels[every], config, loss=of
    )
    assert weighted.run() == pytest.approx(repeated.run(), rel=1e-9)
    assert torch.allclose(
        weighted.driver.scores[often],
        repeated.driver.scores[: len(often)],
        rtol=0,
        atol=1e-9,
    )


def test_a_forest_is_the_mean_of_trees_that_each_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Splits come from a tree's own rows, leaves from all: the law is a centralized
    one, tree by tree."""
    x, y = table(rows=480)
    # every node has rows of each value, so that no two splits part its rows alike
    x = x.round().clamp(-1, 1)
    config = PLAIN.changed(ensemble="forest", row_share=0.5, depth=2)
    toy = between({"bank": x[:, :2], "lab": x[:, 2:]}, y, config, rounds=5)
    drawn = []

    def sampled(*given: Any) -> Any:
        drawn.append(tree_learning.sampled(*given))
        return drawn[-1]

    monkeypatch.setattr(boosted_trees, "sampled", sampled)
    toy.run()
    train = toy.batches.splits["train"]
    p = float(y[train].double().mean())
    edges = [
        central_trees.borders(column, config.bins)
        for column in x[train].double().numpy().T
    ]
    means = []
    for number, (rows, _) in enumerate(drawn):
        mine = toy.batches.epoch_rows(number)
        here = x[mine].double().numpy()
        truth = y[mine].double().numpy()
        g = p - truth
        h = np.full(len(truth), p * (1 - p))
        tree = central_trees.grown(
            here[rows], g[rows], h[rows], edges, depth=2, l2=config.l2, rate=1.0
        )
        leaf = np.array([id(tree.of(row)) for row in here])
        value = {
            one: -g[leaf == one].sum() / (h[leaf == one].sum() + config.l2)
            for one in np.unique(leaf)
        }
        means.append([value[id(tree.of(row))] for row in x[train].double().numpy()])
    start = np.log(p / (1 - p))
    assert np.allclose(
        toy.predict("train")[:, 0].numpy(), start + np.mean(means, axis=0), atol=1e-5
    )
    with pytest.raises(
        ConfigError,
        match="averages trees that were grown from different rows and columns",
    ):
        Config(ensemble="forest")


def test_classes_can_weigh_the_same_and_counts_cannot_be_negative() -> None:
    x, y = table()
    rare = (y == 1) & (torch.arange(len(y)) % 5 == 0)
    plain, balanced = (
        between(
            {"bank": x},
            rare.long(),
            Config(encryption="none"),
            loss=Logistic(weights=weights),
            rounds=8,
        )
        for weights in ((), balanced_weights(rare[: len(y) * 3 // 4], 2))
    )
    plain.run()
    balanced.run()
    assert balanced.predict().mean() > plain.predict().mean() + 0.5
    with pytest.raises(DataError, match='"poisson" needs labels of 0 or more'):
        between({"bank": x}, x[:, 0], Config(loss="poisson"), loss=Squared()).run(1)


def test_leaves_are_bounded_and_the_best_splits_are_kept() -> None:
    x, y = table()
    few = between({"bank": x}, y, PLAIN.changed(leaves=3, depth=4), rounds=2)
    few.run()
    for found in few.driver.rounds:
        assert int((found["party"] < 0).sum()) == 3


def test_an_owner_knows_which_of_its_columns_were_used() -> None:
    x, y = table()
    toy = between({"bank": x[:, :1], "lab": x[:, 1:]}, y, PLAIN)
    toy.run()
    used = toy.parties["lab"].importance()
    assert set(used) <= set(range(5))
    assert max(used, key=used.__getitem__) in (0, 1)  # the label follows these
    assert sum(toy.driver.importance().values()) == pytest.approx(1)
