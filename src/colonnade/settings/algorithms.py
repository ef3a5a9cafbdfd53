"""The settings of every algorithm: [algorithm] in a federation file.

An algorithm's own module imports torch, and its settings have to be checked before
that. So they stand here, with all else that must be known of an algorithm before it is
imported: what it reveals, and what can be asked of it. The module calls its class
`Config`.

The defaults are the papers'. `for_tables` has those that suit tables, which are used
where a federation trains on tables and its file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from colonnade.errors import check_named
from colonnade.settings.schema import (
    Fraction,
    NotNegative,
    Positive,
    Proportion,
    Rule,
    Table,
    Whole,
    WholeOrZero,
)

Optimizer = Literal["sgd", "adam"]
EMBEDDINGS = "the local model's output for each row, a summary of its columns"
EMBEDDING_GRADIENTS = (
    "per row how the loss changes with the embedding: labels can be guessed from it"
)
LOGITS = "what each row's columns say about its label, in the local model's view"
RESIDUALS = "per row a vector that follows the label: labels can be guessed from it"
PUBLIC_KEY = "nothing about anybody's data"
OF_LOCAL_MODELS = "of the local models"
OF_BOTH = "of the local models and of the label owner's"
WITH_SGD = 'with `optimizer = "sgd"`'
PULLS = "pulls weights towards 0"
STEPS = "a party's own steps between two exchanges"
PENALTY = (
    "ADMM's penalty ρ: how hard the parties' logits are pulled to the label owner's"
)
HEAD_WIDTH = (
    "width of one hidden layer in the label owner's model; 0: the model is linear"
)
UNENCRYPTED = "of encryption; `plain` encrypts nothing and is for debugging"


class AlgorithmSettings(Table):
    """The settings of an algorithm, and what can be asked of it before it is imported.

    The first paragraph of a subclass's docstring says in a sentence what the algorithm
    is.
    """

    name: ClassVar[str] = ""
    """The name in a file: [algorithm] name."""
    reveals: ClassVar[Mapping[str, str]] = {}
    """For each release by its name, what the receiver learns."""
    for_tables: ClassVar[Mapping[str, Any]] = {}
    """Settings for tables, where nobody says otherwise."""
    for_lacking_rows: ClassVar[Mapping[str, Any]] = {}
    """More settings for tables, where a row may lack a party's part."""
    several_label_owners: ClassVar[bool] = False
    """Whether several organisations hold labels, and a server adds their weights up."""
    in_batches: ClassVar[bool] = True
    """Whether a step is a batch. Otherwise it is a round over all training rows."""
    converges: ClassVar[bool] = False
    """Whether it trains to a single optimum, so that no earlier model is kept."""
    grows: ClassVar[bool] = False
    """Whether every step adds to what a prediction asks for, as a tree does."""
    most_epochs: ClassVar[int | None] = None
    """1: training rows are released once. 0: they are never released for training."""
    one_weight_per_column: ClassVar[bool] = False
    """Whether a party's model is one weight for each column, so that [model] says
    nothing."""
    lacking: ClassVar[str] = "It has no value that stands for nothing."
    """Why a row needs the part of every party, in a sentence."""

    @classmethod
    def kind_for(cls, values: Any) -> type[Table]:
        """The settings of the algorithm that the table names."""
        if cls is not AlgorithmSettings or not isinstance(values, Mapping):
            return cls
        return ALGORITHM_SETTINGS.get(str(values.get("name", DEFAULT)), cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.place = f"[algorithm] ({cls.name})" if cls.name else "[algorithm]"

    @classmethod
    def about(cls) -> str:
        """The algorithm in a sentence."""
        first_paragraph = (cls.__doc__ or "").strip().partition("\n\n")[0]
        return " ".join(first_paragraph.split())

    def stand_ins(self) -> frozenset[str]:
        """What can stand in for a party that does not answer: "stale", "skip", or
        nothing.

        "stale" is its last answer. "skip" goes on without it.
        """
        return frozenset()

    def can_lack(self) -> bool:
        """Whether it learns from a row, and predicts it, without one party's part."""
        return "skip" in self.stand_ins()


STALE = frozenset({"stale"})
STALE_OR_SKIP = frozenset({"stale", "skip"})


class SplitNN(AlgorithmSettings):
    """SplitNN on vertically partitioned data: concatenated embeddings, one head at the
    label owner."""

    name = "splitnn"
    reveals = {"embedding": EMBEDDINGS, "gradient": EMBEDDING_GRADIENTS}
    for_tables = {
        "optimizer": "adam",
        "learning_rate": 0.002,
        "weight_decay": 0.001,
        "head_hidden": 64,
    }
    for_lacking_rows = {"combine": "mean"}
    lacking = 'Its head reads all embeddings side by side, unless combine = "mean".'

    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(default=0.1, description=OF_BOTH)
    momentum: Fraction = Field(default=0.9, description=WITH_SGD)
    weight_decay: NotNegative = Field(default=0.0, description=PULLS)
    head_hidden: WholeOrZero = Field(default=0, description=HEAD_WIDTH)
    combine: Literal["concat", "mean"] = Field(
        default="concat",
        description="what the head reads: all embeddings side by side, or their mean",
    )

    def stand_ins(self) -> frozenset[str]:
        """A head reads a zero like any value; but a mean is over who is present."""
        return STALE_OR_SKIP if self.combine == "mean" else STALE


class Vafl(AlgorithmSettings):
    """VAFL: a learned weighted average of the parties' embeddings, and a linear model
    on it; in rounds or asynchronous.

    The defaults are VIM's Table 2 for MNIST. "turns" asks one party at a time in a
    seeded order and reproduces. "arrival" asks all at once and takes answers as they
    come. Neither needs another learning rate than rounds: on MNIST's 14 strips both
    keep up with rounds at 0.3.
    """

    name = "vafl"
    reveals = {"embedding": EMBEDDINGS, "gradient": EMBEDDING_GRADIENTS}
    for_tables = {"optimizer": "adam", "learning_rate": 0.002}
    lacking = (
        'Where parties take turns each must take its own, unless schedule = "rounds".'
    )

    schedule: Literal["rounds", "turns", "arrival"] = Field(
        default="rounds",
        description=(
            "all parties each batch, one party after the other, or whoever answers"
            " first"
        ),
    )
    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(
        default=0.3, description="of the parties and of the label owner"
    )
    momentum: Fraction = Field(
        default=0.9, description="of the parties; the label owner's step has none"
    )
    weight_decay: NotNegative = Field(default=0.001, description=PULLS)
    average_rate: NotNegative = Field(
        default=0.0,
        description=(
            "of the parties' weights alone, which then do not decay (0.01 in VIM's"
            " code); 0: as the label owner's model"
        ),
    )

    def stand_ins(self) -> frozenset[str]:
        """A round is a sum over parties; but in turns each must take its own."""
        return STALE_OR_SKIP if self.schedule == "rounds" else frozenset()


class Fdml(AlgorithmSettings):
    """FDML: every party holds a whole model; the label owner adds up their logits.

    The defaults are VIM's Table 2 for MNIST.
    """

    name = "fdml"
    reveals = {
        "logits": LOGITS,
        "gradient": (
            "per row the probabilities minus the label: the label can be read from it"
        ),
    }
    for_tables = {"optimizer": "adam", "learning_rate": 0.002}

    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(default=0.1, description=OF_BOTH)
    momentum: Fraction = Field(default=0.9, description=WITH_SGD)
    weight_decay: NotNegative = Field(default=0.001, description=PULLS)

    def stand_ins(self) -> frozenset[str]:
        """The outputs are a sum over parties."""
        return STALE_OR_SKIP


class VimSgd(AlgorithmSettings):
    """VIMSGD: one linear head per party, trained by gradients.

    The defaults are VIM's Table 2 for MNIST.
    """

    name = "vimsgd"
    reveals = {"embedding": EMBEDDINGS, "gradient": EMBEDDING_GRADIENTS}
    for_tables = {"optimizer": "adam", "learning_rate": 0.002}

    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(
        default=0.3, description="of the parties and of the heads"
    )
    momentum: Fraction = Field(
        default=0.9, description="of the parties; the heads' step has none"
    )
    weight_decay: NotNegative = Field(
        default=0.001, description="β: pulls weights towards 0"
    )
    gradient_heads: Literal["old", "new"] = Field(
        default="old",
        description=(
            "the heads at which the parties' gradients are taken: before or after the"
            " heads' own step (as the paper's Eq. 14 prints it)"
        ),
    )

    def stand_ins(self) -> frozenset[str]:
        """The outputs are a sum over parties."""
        return STALE_OR_SKIP


class VimAdmm(AlgorithmSettings):
    """VIMADMM: one linear head per party, solved by ADMM, with many local steps per
    exchange.

    The defaults are the paper's Table 2 for MNIST.
    """

    name = "vimadmm"
    reveals = {
        "embedding": EMBEDDINGS,
        "residual": RESIDUALS,
        "head": "how the label owner weighs this party's embedding",
    }
    for_tables = {"optimizer": "adam", "learning_rate": 0.001, "local_steps": 5}
    lacking = (
        "The exact minimum over a head would forget it in a batch without its party,"
        ' unless head_update = "sgd".'
    )

    rho: Positive = Field(default=2.0, description=PENALTY)
    local_steps: Whole = Field(default=20, description=f"τ: {STEPS}")
    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(
        default=0.05, description="of the parties; the heads have their own"
    )
    momentum: Fraction = Field(
        default=0.9, description="of the parties; the heads' step has none"
    )
    weight_decay: NotNegative = Field(
        default=0.001, description="β: pulls weights towards 0"
    )
    head_update: Literal["sgd", "exact", "exact_scaled"] = Field(
        default="sgd",
        description=(
            "one gradient step on the heads, as in the paper, or the exact minimum;"
            " scaled: with local steps divided by what the head has grown"
        ),
    )
    head_learning_rate: Positive = Field(
        default=0.05, description='with `head_update = "sgd"`'
    )
    residual_heads: Literal["old", "new"] = Field(
        default="old",
        description=(
            "the heads of which the residual is: before their own step, or after it (as"
            " the paper's Eq. 9 prints it), which diverges"
        ),
    )

    def stand_ins(self) -> frozenset[str]:
        """The outputs are a sum over parties; but the exact minimum over a head without
        any embedding would forget the head."""
        return STALE_OR_SKIP if self.head_update == "sgd" else STALE


class VimAdmmJoint(AlgorithmSettings):
    """VIMADMM-J: ADMM with whole models at the parties; the label owner needs only the
    sum of their logits.

    The defaults are the paper's Table 2 for MNIST.
    """

    name = "vimadmm_joint"
    reveals = {
        "logits": (
            f"{LOGITS}; with secure aggregation a share that is uniform by itself, and"
            " from all shares together only the parties' sum"
        ),
        "residual": RESIDUALS,
    }
    for_tables = {"optimizer": "adam", "learning_rate": 0.001, "local_steps": 5}
    lacking = (
        'Masked shares add up only if all of them come, unless aggregation = "plain".'
    )

    rho: Positive = Field(default=0.5, description=PENALTY)
    local_steps: Whole = Field(default=20, description=f"τ: {STEPS}")
    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(
        default=0.05, description="of the parties, who hold the heads too"
    )
    momentum: Fraction = Field(default=0.9, description=WITH_SGD)
    weight_decay: NotNegative = Field(
        default=0.001, description="β: pulls weights towards 0"
    )
    aggregation: Literal["plain", "secure"] = Field(
        default="plain",
        description="what the label owner sees: all logits, or their sum",
    )
    local_order: Literal["together", "head_first"] = Field(
        default="together",
        description=(
            "a local step moves head and model together, or the head first (as the"
            " paper's Algorithm 3 prints it), which can diverge"
        ),
    )

    def stand_ins(self) -> frozenset[str]:
        """The outputs are a sum over parties; but masked shares need all of them, and
        each is used once."""
        return STALE_OR_SKIP if self.aggregation == "plain" else frozenset()


class CompressedVfl(AlgorithmSettings):
    """Compressed VFL and Noisy C-VFL: Q local iterations of everybody per round, on the
    same stale, compressed messages.

    The papers step by plain SGD, without momentum; with "adam", 0.9 is usual.
    """

    name = "compressed_vfl"
    reveals = {
        "embedding": f"{EMBEDDINGS}; all other parties get it too",
        "model": "the label owner's model, from which labels can be guessed",
        "targets": "the labels of all training rows, to every party",
        "inputs": (
            "which inputs of the label owner's model are whose: nothing about data"
        ),
    }
    for_tables = {
        "optimizer": "adam",
        "learning_rate": 0.001,
        "momentum": 0.9,
        "weight_decay": 0.001,
        "local_steps": 5,
    }
    lacking = "Its head reads all embeddings side by side."

    local_steps: Whole = Field(default=10, description=f"Q: {STEPS}")
    optimizer: Optimizer = Field(default="sgd", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(default=0.05, description=OF_BOTH)
    momentum: Fraction = Field(default=0.0, description=WITH_SGD)
    weight_decay: NotNegative = Field(default=0.0, description=PULLS)
    head_hidden: WholeOrZero = Field(default=0, description=HEAD_WIDTH)


class VFedCce(AlgorithmSettings):
    """vFedCCE: every party has a whole classifier; the joint model is the mean of their
    probabilities; gradients are exact.

    The defaults are the paper's. It gives no size of its L2 penalty, `weight_decay`.
    """

    name = "vfedcce"
    reveals = {
        "log_odds": LOGITS,
        "jacobian": (
            "in plaintext, the columns of every row: they can be read by division;"
            " encrypted, nothing"
        ),
        "public_key": PUBLIC_KEY,
        "coefficients": "encrypted, nothing by themselves",
        "masked_gradient": (
            "nothing, where key and ciphertexts are what they should be: it is under a"
            " mask that only its sender can take off; to who made them for that, the"
            " Jacobian"
        ),
        "gradient": (
            "the batch's gradient; a party with more weights than coefficients can"
            " solve it for the labels"
        ),
    }
    lacking = (
        "A party's coefficients are solved from every row of the batch, with the"
        " others' part of it."
    )

    mode: Literal["encrypted-coefficients", "encrypted-jacobian", "plaintext"] = Field(
        default="encrypted-coefficients",
        description=(
            "what is encrypted; `plaintext` shows one party's columns to the other and"
            " says so"
        ),
    )
    scheme: Literal["bfv", "ckks", "plain"] = Field(
        default="bfv", description=UNENCRYPTED
    )
    optimizer: Optimizer = Field(default="adam", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(default=0.001, description=OF_BOTH)
    momentum: Fraction = Field(default=0.9, description=WITH_SGD)
    weight_decay: NotNegative = Field(default=0.0, description=PULLS)
    coefficient_limit: Positive = Field(
        default=4.0,
        description=(
            "largest coefficient that the keys are made for; what is above 1 is room"
            " for a mechanism's noise"
        ),
    )


class BoostedTrees(AlgorithmSettings):
    """Boosted trees (SecureBoost): gradient-boosted trees over everybody's columns,
    from encrypted gradients.

    [train] epochs is the number of rounds.
    """

    name = "boosted_trees"
    reveals = {
        "sums": (
            "for each node and each way to part its rows by a column, the sum of"
            " gradients of those that would go left; neither which column nor where it"
            " is parted"
        ),
        "directions": (
            "for each row on which side of each chosen threshold it is, and not what"
            " the threshold is"
        ),
        "public_key": PUBLIC_KEY,
        "gradients": (
            "without encryption, the probability minus the label; encrypted, nothing"
        ),
        "hessians": "without encryption, how sure the model is of each row",
        "sample": (
            "which rows a round learns from; with GOSS, mostly those that the model"
            " gets wrong"
        ),
        "splits": "which of the receiver's thresholds are chosen",
        "nodes": (
            "which rows are in which node of each tree: rows of one node are alike in"
            " their labels"
        ),
    }
    in_batches = False
    grows = True

    encryption: Literal["elgamal", "none"] = Field(
        default="elgamal",
        description=(
            "of gradients; `none` shows them, and so the labels, to every party"
        ),
    )
    nodes: Literal["shown", "hidden"] = Field(
        default="shown",
        description=(
            "`hidden`: feature owners are not told which rows are in which node; some"
            " ten times the time and the bytes"
        ),
    )
    ensemble: Literal["boosted", "forest"] = Field(
        default="boosted",
        description=(
            "`forest`: trees that each begin anew, from rows and columns of their own,"
            " averaged"
        ),
    )
    loss: Literal["auto", "squared", "absolute", "poisson"] = Field(
        default="auto",
        description="by the label, or for labels that are numbers another one",
    )
    learning_rate: Positive = Field(
        default=0.1, description="how much of a tree is taken"
    )
    depth: Annotated[int, Field(ge=1, le=10)] = Field(
        default=5, description="levels of a tree"
    )
    leaves: Annotated[int, Field(ge=2)] = Field(
        default=1024,
        description=(
            "most of a tree; where a level would have more, the nodes that gain most"
            " are split"
        ),
    )
    bins: Annotated[int, Field(ge=2, le=64)] = Field(
        default=32, description="of a column, beside the one for gaps"
    )
    l2: NotNegative = Field(
        default=1.0, description="lambda: added to a leaf's sum of Hessians"
    )
    min_gain: NotNegative = Field(
        default=0.0, description="gamma: what a split must gain"
    )
    min_child_weight: NotNegative = Field(
        default=0.001, description="least sum of Hessians in a child"
    )
    min_rows: Whole = Field(
        default=5,
        description="least rows in a sum that is told to the label owner, so in a leaf",
    )
    row_share: Proportion = Field(
        default=1.0, description="of the rows, drawn anew for each round"
    )
    column_share: Proportion = Field(
        default=1.0, description="of each party's columns, drawn anew for each round"
    )
    goss_top: Fraction = Field(
        default=0.0,
        description=(
            "share of rows with the largest gradients, of which all are learned from;"
            " 0: no GOSS"
        ),
    )
    goss_rest: Fraction = Field(
        default=0.1,
        description=(
            "share of rows drawn from the others, which then count for all others"
        ),
    )
    gradient_bits: Annotated[int, Field(ge=0, le=10)] = Field(
        default=8,
        description=(
            "to which gradients are rounded at random; 0 leaves them as they are,"
            " without encryption"
        ),
    )

    @model_validator(mode="after")
    def _check_encryption(self) -> Self:
        if self.encryption != "none" and not self.gradient_bits:
            raise ValueError(
                "gradient_bits = 0 leaves gradients unrounded, and only whole numbers"
                " can"
                ' be encrypted. Set it to 8, or encryption = "none".'
            )
        if self.encryption == "none" and self.nodes == "hidden":
            raise ValueError(
                'nodes = "hidden" hides nodes behind encrypted gradients, and'
                ' encryption is "none". Set encryption = "elgamal".'
            )
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        all_alike = self.row_share * self.column_share == 1
        if self.is_forest and (all_alike or self.goss_top):
            raise ValueError(
                'ensemble = "forest" averages trees that were grown from different rows'
                " and columns: set row_share or column_share below 1, as in 0.6, and"
                " leave goss_top out."
            )
        most_left = 1 - self.goss_top + 1e-9
        if self.goss_top and not 0 < self.goss_rest <= most_left:
            raise ValueError(
                "goss_rest is the share of rows kept beside the goss_top ="
                f" {self.goss_top} with the largest gradients: above 0, and both at"
                f" most 1 together; found {self.goss_rest}."
            )
        return self

    @property
    def is_forest(self) -> bool:
        """Whether every tree begins where the first does, and they are averaged."""
        return self.ensemble == "forest"

    def can_lack(self) -> bool:
        """A tree sends a row on by the rule for gaps, where its party lacks it."""
        return True


class LogisticRegression(AlgorithmSettings):
    """Logistic regression over everybody's columns, to its optimum; of numbers, ridge
    regression.

    `l2` is scikit-learn's 1/C of a logistic regression, and its alpha of a ridge
    regression of scaled labels.
    """

    name = "logistic_regression"
    reveals = {
        "logits": (
            "a party's part of each row's score, or how a step changes it; with secure"
            " aggregation a share that is uniform by itself, and from all shares"
            " together only the parties' sum"
        ),
        "lengths": (
            "how long a party's coefficients and directions are, in its own measure;"
            " with secure aggregation, those of all parties together; to who chooses"
            " gradients, products of rows. No noise protects a row in it, so an owner"
            " with a budget refuses it"
        ),
        "gradient": (
            "per row the probability minus the label: the label can be read from it;"
            " encrypted, nothing"
        ),
        "public_key": PUBLIC_KEY,
        "masked_gradient": (
            "nothing, where key and ciphertexts are what they should be: it is under a"
            " mask that only its sender can take off; to who made them for that, the"
            " columns"
        ),
        "column_gradient": (
            "for each of its columns the sum over all rows of the column times the"
            " probability minus the label: labels as far as the receiver's own columns"
            " tell them; of few rows, or to who multiplied by something else, all"
        ),
    }
    in_batches = False
    converges = True
    one_weight_per_column = True
    lacking = (
        "Its steps are for the sum of all parties' scores, and each is taken by all of"
        " them."
    )

    l2: NotNegative = Field(
        default=1.0, description="the penalty, over the sum of losses"
    )
    aggregation: Literal["plain", "secure"] = Field(
        default="plain",
        description="what the label owner sees: all scores, or their sum",
    )
    encryption: Literal["none", "bfv"] = Field(
        default="none",
        description="how the gradient of each row leaves the label owner",
    )


class NearestNeighbours(AlgorithmSettings):
    """Nearest neighbours over columns that several parties hold: nothing is trained,
    and a row's neighbours vote."""

    name = "knn"
    reveals = {
        "distances": (
            "plain, how far each row is from each training row in one party's columns,"
            " from which these follow up to a rotation; encrypted, nothing to the label"
            " owner, and to the reader the sum over the other parties"
        ),
        "total": (
            "to the reader, who decrypts it, the sum over the other parties of these"
            " distances"
        ),
        "public_key": PUBLIC_KEY,
        "neighbours": "which training rows are nearest to each row, in order",
    }
    # Many neighbours tell shares, and the nearest one of many classes.
    for_tables = {"k": 60, "fade": "auto"}
    most_epochs = 0
    lacking = (
        "Distances add up over columns, and a row that lacks some would be near to"
        " everybody."
    )

    k: Whole = Field(
        default=5,
        description="neighbours that vote; of fewer training rows, all of them",
    )
    fade: Annotated[
        NotNegative | Literal["auto"], Rule('"auto" or a number, 0 or more')
    ] = Field(
        default=0.0, description="the r-th nearest weighs r^-fade; 0: all weigh alike"
    )
    aggregation: Literal["encrypted", "plain"] = Field(
        default="encrypted",
        description=(
            "how distances are added up; `plain` shows every party's to the label owner"
        ),
    )
    scheme: Literal["ckks", "bfv", "plain"] = Field(
        default="ckks", description=UNENCRYPTED
    )


class OneShot(AlgorithmSettings):
    """One shot: each party sends a few numbers per row once, learned without labels,
    and nothing ever comes back."""

    name = "one_shot"
    reveals = {
        "embedding": (
            "a few numbers that a party learned from its own columns, without labels:"
            " as much of each row's columns as they hold"
        )
    }
    for_tables = {"estimator": "auto", "width": 8}
    most_epochs = 1
    in_batches = False
    lacking = "Its head reads all parties' embeddings side by side, once."

    width: Whole = Field(
        default=4, description="numbers per row and party; no more than it has columns"
    )
    encoder: Literal["pca", "autoencoder"] = Field(
        default="pca", description="what a party learns from its own rows"
    )
    encoder_epochs: Whole = Field(
        default=20, description="how often an autoencoder sees the rows"
    )
    estimator: Literal["boosted_trees", "logistic", "mlp", "auto"] = Field(
        default="boosted_trees", description="what the label owner learns"
    )


class MultiVfl(AlgorithmSettings):
    """Multi-VFL: columns at D data owners, labels at K label owners, split learning
    inside federated averaging.

    The defaults are the paper's Table 2 of the server. The box's plain local step is
    "sgd" with momentum 0.
    """

    name = "multi_vfl"
    reveals = {
        "embedding": EMBEDDINGS,
        "gradient": EMBEDDING_GRADIENTS,
        "weights": (
            "the label owners' model: what its training on their rows left in it"
        ),
    }
    several_label_owners = True
    lacking = "A label owner's model reads all embeddings side by side."

    server: Literal["fedavg", "fedadam", "fedyogi", "feddemonadam"] = Field(
        default="fedavg",
        description="how the aggregation server combines label owners' models",
    )
    server_rate: NotNegative = Field(
        default=0.0,
        description=(
            "how much of the change is taken; 0: the optimizer's own, 1 for fedavg and"
            " 0.001 for the others"
        ),
    )
    beta1: Fraction = Field(
        default=0.9, description="the server optimizer's decay of the first moment"
    )
    beta2: Fraction = Field(
        default=0.99, description="the server optimizer's decay of the second moment"
    )
    tau: Positive = Field(
        default=1e-3,
        description="added to the root of the second moment, against division by 0",
    )
    second_moment: Literal["momentum", "delta"] = Field(
        default="momentum",
        description=(
            "of what it is made: the momentum, as in the paper's listing, or the"
            " change, as in Reddi et al."
        ),
    )
    demon: Literal["original", "literal"] = Field(
        default="original",
        description=(
            "from what feddemonadam's momentum decays: from beta1, or line 2 read"
            " literally, from the last round's"
        ),
    )
    weighting: Literal["rows", "uniform"] = Field(
        default="rows",
        description=(
            "a label owner's weight in the average: its rows, or the same for all"
        ),
    )
    local_epochs: Whole = Field(
        default=1, description="E: passes over a label owner's rows in one round"
    )
    optimizer: Optimizer = Field(default="adam", description=OF_LOCAL_MODELS)
    learning_rate: Positive = Field(default=0.001, description=OF_BOTH)
    momentum: Fraction = Field(default=0.9, description=WITH_SGD)
    weight_decay: NotNegative = Field(default=0.0, description=PULLS)
    concatenate: Literal["features", "height"] = Field(
        default="features",
        description=(
            "how the label owner joins what data owners send: as features, or feature"
            " maps on top of each other"
        ),
    )

    @property
    def axis(self) -> int:
        """Along which a label owner joins what data owners send."""
        return -1 if self.concatenate == "features" else -2

    def weight(self, rows: int) -> float:
        """How much a label owner with so many training rows counts in every mean."""
        return float(rows) if self.weighting == "rows" else 1.0

    def stand_ins(self) -> frozenset[str]:
        """A batch may take a last answer; rounds are opened and averaged by all."""
        return STALE


DEFAULT = "splitnn"
"""The algorithm that is trained where nobody chose. `colonnade bench defaults` compares
it with others by validation rows."""

ALGORITHM_SETTINGS: dict[str, type[AlgorithmSettings]] = {
    kind.name: kind
    for kind in (
        SplitNN,
        Vafl,
        Fdml,
        VimSgd,
        VimAdmm,
        VimAdmmJoint,
        CompressedVfl,
        VFedCce,
        BoostedTrees,
        LogisticRegression,
        NearestNeighbours,
        OneShot,
        MultiVfl,
    )
}
"""The settings of every algorithm by its name, in the order in which they are listed.

`algorithms.ALGORITHMS` adds those of an algorithm that joins it from elsewhere.
"""


def algorithm_settings(name: str) -> type[AlgorithmSettings]:
    """The settings of the algorithm of this name."""
    check_named("algorithm", name, list(ALGORITHM_SETTINGS))
    return ALGORITHM_SETTINGS[name]


def with_several_label_owners() -> list[str]:
    """The names of the algorithms for several organisations with labels."""
    return [
        name for name, kind in ALGORITHM_SETTINGS.items() if kind.several_label_owners
    ]
