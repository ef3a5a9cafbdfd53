"""vFedCCE: every party has a whole classifier; the joint model is the mean of their
probabilities; gradients are exact.

Zhu, A vertical federated learning algorithm for classification problems with
gradient-based optimization; unlike Hardy et al. (arXiv:1711.10677), without a Taylor
approximation of the loss. With m classes, log-odds u_k = f_k(x_k) against the first
class, a_k = softmax([0, u_k]), for each batch B of N rows:

    party k:      u_k = f_k(x_k[B])                                                Embed    -> Embedding
    label owner:  p = mean_k a_k; loss = -mean_i log p_i[y_i]; c_k = N dloss/du_k
    together:     g_k = 1/N sum_ij c_k[i, j] du_k[i, j]/dtheta_k                   by one of three exchanges
    party k:      one optimizer step with g_k

The paper's coefficients are c = y / p and its Jacobian da/dtheta. The label owner knows
a, so it takes the chain rule's first link itself: then every coefficient is in [-1, 1]
however small p is, and N (m - 1) are enough. (The paper's Eq. 1 lacks the 1/M of the
mean: as printed, it is M times the gradient.)

    plaintext               k sends its Jacobian, the label owner sends g_k           as printed, and unsafe
    encrypted-jacobian      k sends its Jacobian under its own key, the label owner weighs and adds, k decrypts
    encrypted-coefficients  the label owner sends c_k under its own key; k multiplies by its plain Jacobian and adds a
                            mask; the label owner decrypts the masked sum; k takes the mask off    (the default)

What crosses: log-odds up in all modes, then as above. What the label owner learns:
always u_k, per row. In plaintext also the features: at a linear first layer du/dW =
delta x^T and du/db = delta, so it divides and reads x. Encrypted, it sees nothing else:
ciphertexts under k's key, or a sum under a mask that is uniform over all that it could
decrypt.

What party k learns. In all modes g_k, the gradient it asked for, and through it more
than the paper says: k knows its Jacobian, so where it has more weights than
coefficients (N (m - 1)), which is nearly always, it can solve for c_k; the sign of c_k
is the label. Encryption cannot change that: it keeps c_k from those who only listen,
and from a party with fewer weights. (With encrypted-jacobian not even from that one:
what it decrypts is a sum of its own ciphertexts.) An outbox rule with a mechanism for
"coefficients" does protect labels; it applies before encryption.

A party takes one key, of its own settings' scheme and limit: one of the scheme "plain"
would show rows' Jacobians. A key or ciphertext of that scheme made to break it may
still succeed; against that, parties follow the protocol. What is decrypted goes back to
the party that knows the ciphertext, so the default scheme is bfv, whose decrypted
numbers hold no noise that could tell about the secret key, and with which a run repeats
to the bit. ckks is faster and smaller, adds noise against that, and repeats to its
precision. A role of the label owner's own organisation needs no protection from it:
encrypted modes give it c_k as it is. Secret keys are made anew in every process and
never saved. FDML and SplitNN have no such modes; reproductions/vfedcce/README.md says
why.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import embedding
from colonnade.algorithms.algorithm import KEY, Algorithm, Crossing, Kind, Release
from colonnade.algorithms.embedding import Embed, predict
from colonnade.algorithms.heads import MeanProbability
from colonnade.algorithms.under_key import Masking, as_agreed, opened
from colonnade.core import (
    NON_PRIVATE,
    Batches,
    Ciphertext,
    Done,
    DpEvent,
    Message,
    Organisation,
    Peers,
    Released,
    Request,
    Step,
    roles,
    serves,
)
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import PUBLIC
from colonnade.encryption import PublicKey, SecretKey, make_keys, read_public_key
from colonnade.errors import ConfigError
from colonnade.optim.jacobians import jacobian_by_row, jacobian_of, set_gradient
from colonnade.optim.losses import Loss, Squared
from colonnade.settings import algorithms as settings

HIDDEN = ("encrypted", "blinded")
MOST = 1 << 28
"""The most values of a Jacobian, rows (m - 1) times weights: a gigabyte in float32."""


Config = settings.VFedCce


class Key(Message):
    public: Annotated[Released, Kind.KEY]


class AskKey(Request[Key]):
    """Asks a party for a public key of its own."""

    coefficients: int  # how many will be multiplied with a column of the Jacobian


class UseKey(Request[Done]):
    public: Released  # the label owner's


class Jacobian(Message):
    # [rows (m - 1), weights]; encrypted under the party's key
    values: Annotated[Released | Ciphertext, Kind.JACOBIAN]


class AskJacobian(Request[Jacobian]):
    batch: str


class Masked(Message):
    # [weights], under the label owner's key and the party's mask
    gradient: Annotated[Ciphertext, Kind.OTHER]


class Multiply(Request[Masked]):
    batch: str
    coefficients: Ciphertext  # [rows, m - 1], under the label owner's key


class TakeGradient(Request[Done]):
    batch: str
    # [weights]; encrypted under the party's key, or under its mask
    gradient: Released | Ciphertext


class TakeCoefficients(Request[Done]):
    """Coefficients in the clear, inside the label owner's organisation, which needs no
    protection from itself."""

    batch: str
    coefficients: Released  # c_k / N, [rows, m - 1]


def crossing(config: Config) -> tuple[Crossing, Crossing]:
    """What crosses from columns and from labels in this mode, and whether it can be
    read."""
    is_hidden = config.scheme != NOT_ENCRYPTED
    encrypted, blinded = (
        DpEvent(f"{how} ({config.scheme})") if is_hidden else NON_PRIVATE
        for how in HIDDEN
    )
    columns = {"log_odds": NON_PRIVATE}
    labels = {"gradient": NON_PRIVATE}
    match config.mode:
        case "plaintext":
            return columns | {"jacobian": NON_PRIVATE}, labels
        case "encrypted-jacobian":
            return columns | {"public_key": PUBLIC, "jacobian": encrypted}, labels
    return (
        columns | {"masked_gradient": blinded},
        {"public_key": PUBLIC, "coefficients": encrypted} | labels,
    )


class FeatureOwner(Masking, embedding.FeatureOwner):
    """Holds columns and the whole local model."""

    config: Config
    released_as = "log_odds"

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.reserved = {TakeCoefficients: {organisation.name}}
        # nobody else may compute with this party's keys
        self.stackable = config.mode == "plaintext"
        self._secret: SecretKey | None = None

    @serves
    def ask_key(self, request: AskKey) -> Key:
        self._in("encrypted-jacobian")
        if self._secret is None:
            limit = jacobian_limit(request.coefficients)
            self._secret = make_keys(
                self.config.scheme, use="combinations", limit=limit
            )
        return Key(self.outbox.publish(self._secret.public.to_bytes(), "public_key"))

    @serves
    def use_key(self, request: UseKey) -> Done:
        self._in("encrypted-coefficients")
        scheme = self.config.scheme
        limit = self.config.coefficient_limit
        return self.keep(
            read_public_key(request.public, scheme=scheme, use="products", limit=limit)
        )

    @serves
    def ask_jacobian(self, request: AskJacobian, asker: str | None) -> Jacobian:
        self._in("encrypted-jacobian", "plaintext")
        jacobian = self._jacobian(request.batch)
        if self.config.mode == "plaintext":
            return Jacobian(
                self.outbox.release(jacobian, "jacobian", request.batch, to=asker)
            )
        return Jacobian(
            self.outbox.encrypt(
                jacobian, "jacobian", request.batch, key=self._own_key(), to=asker
            )
        )

    @serves
    def multiply(self, request: Multiply, asker: str | None) -> Masked:
        self._in("encrypted-coefficients")
        jacobian = self._jacobian(request.batch)
        rows = self._done_with(request.batch)
        return Masked(
            self.masked(request.batch, request.coefficients, jacobian, rows, asker)
        )

    @serves
    def take_gradient(self, request: TakeGradient) -> Done:
        gradient = request.gradient
        if isinstance(gradient, Released):
            self._in("plaintext")
            self._done_with(request.batch)
            return self._step(gradient.tensor)
        if self.config.mode == "encrypted-jacobian":
            rows = self._done_with(request.batch)
            return self._step(self._own_key().decrypt(gradient.encrypted) / rows)
        self._in("encrypted-coefficients")
        number, mask = self.mask_on(request.batch, "a gradient")
        return self._step(self.key.unblind(gradient.encrypted, mask) / number)

    @serves
    def take_coefficients(self, request: TakeCoefficients) -> Done:
        return self.step_with(request.coefficients.tensor, request.batch)

    def _in(self, *modes: str) -> None:
        """Refuse what its own settings do not say, whatever it is asked: nobody else
        can talk it into plaintext."""
        self.expect(
            self.config.mode in modes,
            f"its mode is {self.config.mode}, and this is part of {modes[-1]}",
        )

    def _own_key(self) -> SecretKey:
        return self.needed(self._secret, "it was not asked for a key yet")

    def _jacobian(self, batch: str) -> Tensor:
        """du/dtheta of the pending batch, `[..., N (m - 1), weights]`."""
        _, passed, u = self.expect_pending(self._pending, batch, "a Jacobian was asked")
        weights = self._weights()
        values = (
            u.shape[-2:].numel()
            * sum(weight.numel() for weight in weights)
            // u.shape[:-2].numel()
        )
        self.expect(
            values <= MOST,
            f"its Jacobian would have {values:,} values, and {MOST:,} are allowed;"
            " lower batch_size",
        )
        by_row = jacobian_by_row(self.model, self.x(batch), passed.outputs, u)
        return jacobian_of(u, weights) if by_row is None else by_row

    def _done_with(self, batch: str) -> int:
        """How many rows the pending batch has; it is no longer pending."""
        _, _, u = self.expect_pending(self._pending, batch, "a gradient came")
        self._pending = None
        return u.shape[-2]

    def _step(self, gradient: Tensor) -> Done:
        """One optimizer step with a gradient for all weights."""
        set_gradient(gradient, self._weights())
        self.optimizer.step()
        return Done()

    def _weights(self) -> list[nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]


class LabelOwner(roles.LabelOwner):
    """Holds labels; drives."""

    loss: Loss
    config: Config

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        if isinstance(loss, Squared):
            raise ConfigError(
                "vfedcce averages class probabilities, and the label of"
                f" '{organisation.name}' is a number to be predicted. Choose another"
                " algorithm, or give classes."
            )
        most = max(loss.weights, default=1.0)
        if config.mode == "encrypted-coefficients" and most > config.coefficient_limit:
            raise ConfigError(
                f"A row of the heaviest class counts {most:.3g} times, and"
                " vfedcce.coefficient_limit, which is what can be encrypted of it, is"
                f" {config.coefficient_limit}. Set it to {most + 3:.0f}."
            )
        super().__init__(organisation, labels, loss, config)
        self._secret: SecretKey | None = None
        self._keys: dict[str, PublicKey] = {}

    def outputs(self, u: Mapping[str, Tensor]) -> Tensor:
        """log p, the log of the mean of the parties' probabilities; its log-odds where
        the loss reads one output."""
        log_p: Tensor = MeanProbability(self.loss.outputs)(list(u.values()))
        return log_p

    def learn(
        self, u: Mapping[str, Tensor], batch: str
    ) -> tuple[float, dict[str, Tensor]]:
        """The loss, and c_k for every party."""
        leaves = {k: u_k.requires_grad_() for k, u_k in u.items()}
        loss = self.loss(self.outputs(leaves), self.y(batch))
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return loss.item(), {
            k: len(g) * g for k, g in zip(leaves, gradients, strict=True)
        }


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    mode = driver.config.mode
    # a cohort may have the own role in it
    others = [k for k in peers if k != driver.name or mode == "plaintext"]
    share_keys(driver, peers, others)
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        loss, c = driver.learn(
            {k: r.values.tensor.detach() for k, r in replies.items()}, batch.name
        )
        if others:
            EXCHANGES[mode](driver, peers, batch.name, {k: c[k] for k in others})
        if driver.name not in others and driver.name in peers:
            own = driver.outbox.release(
                c[driver.name] / batch.size, "coefficients", batch.name
            )
            peers[driver.name].ask(TakeCoefficients(batch.name, own))
        yield Step(batch, loss)


def share_keys(driver: LabelOwner, peers: Peers, others: list[str]) -> None:
    """Before the first batch, whoever will decrypt makes keys and gives the public one
    out."""
    config = driver.config
    if config.mode == "plaintext":
        warnings.warn(
            "vfedcce in plaintext: the label owner receives per-row gradients of every"
            " party's model, from which it can read that party's columns by division."
            " Use an encrypted mode for data that is not your own.",
            stacklevel=3,
        )
    elif config.mode == "encrypted-jacobian":
        most = driver.organisation.batches.batch_size * max(driver.widths.values())
        replies = peers.ask_each(dict.fromkeys(others, AskKey(most)))
        agreed: dict[str, Any] = {
            "scheme": config.scheme,
            "use": "combinations",
            "limit": jacobian_limit(most),
        }
        driver._keys = {
            k: read_public_key(reply.public, **agreed) for k, reply in replies.items()
        }
    else:
        driver._secret = driver._secret or make_keys(
            config.scheme, use="products", limit=config.coefficient_limit
        )
        public = driver.outbox.publish(driver._secret.public.to_bytes(), "public_key")
        peers.ask_each(dict.fromkeys(others, UseKey(public)))


def jacobian_limit(coefficients: int) -> float:
    """The largest value of a Jacobian, so that its sum with so many coefficients fits."""
    return 2.0**13 / max(coefficients, 1)


def in_plaintext(
    driver: LabelOwner, peers: Peers, batch: str, c: Mapping[str, Tensor]
) -> None:
    request = AskJacobian(batch)
    gradients = {}
    for k, reply in peers.ask_each(dict.fromkeys(c, request)).items():
        jacobian = as_agreed(Released, reply.values, k, request, batch)
        g_k = c[k].flatten() @ jacobian.tensor / len(c[k])
        gradients[k] = TakeGradient(
            batch, driver.outbox.release(g_k, "gradient", batch)
        )
    peers.ask_each(gradients)


def with_encrypted_jacobian(
    driver: LabelOwner, peers: Peers, batch: str, c: Mapping[str, Tensor]
) -> None:
    request = AskJacobian(batch)
    gradients = {}
    for k, reply in peers.ask_each(dict.fromkeys(c, request)).items():
        jacobian = as_agreed(Ciphertext, reply.values, k, request, batch)
        g_k = driver._keys[k].combine(
            c[k].flatten(), jacobian.encrypted, owner=driver.name
        )
        gradients[k] = TakeGradient(
            batch, driver.outbox.pass_on(g_k, "gradient", batch, event=NON_PRIVATE)
        )
    peers.ask_each(gradients)


def with_encrypted_coefficients(
    driver: LabelOwner, peers: Peers, batch: str, c: Mapping[str, Tensor]
) -> None:
    secret = driver._secret
    assert secret is not None
    sent = {
        k: driver.outbox.encrypt(c_k, "coefficients", batch, key=secret)
        for k, c_k in c.items()
    }
    masked = peers.ask_each(
        {k: Multiply(batch, ciphertext) for k, ciphertext in sent.items()}
    )
    given = {
        k: opened(secret, driver.outbox, sent[k], reply.gradient, "gradient")
        for k, reply in masked.items()
    }
    peers.ask_each({k: TakeGradient(batch, gradient) for k, gradient in given.items()})


EXCHANGES = {
    "plaintext": in_plaintext,
    "encrypted-jacobian": with_encrypted_jacobian,
    "encrypted-coefficients": with_encrypted_coefficients,
}


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    releases={
        "log_odds": embedding.LOGITS,
        "jacobian": Release(Kind.JACOBIAN, of="columns", per_row=False),
        "public_key": KEY,
        "coefficients": Release(Kind.LOGIT_GRADIENT, "labels", per_row=True),
        "masked_gradient": Release(Kind.OTHER, of="columns", per_row=False),
        "gradient": Release(Kind.BATCH_GRADIENT, of="labels", per_row=False),
    },
    crossing=crossing,
    modes={
        mode: Config(mode=mode)
        for mode in ("plaintext", "encrypted-jacobian", "encrypted-coefficients")
    },
    local_model=embedding.with_log_odds,
    head=lambda given: MeanProbability(given.outputs),
    combine=LabelOwner.outputs,
    tasks=("classification",),  # it averages class probabilities
)
