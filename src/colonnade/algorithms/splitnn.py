"""SplitNN on vertically partitioned data: concatenated embeddings, one head at the
label owner.

Vepakomma et al., Split learning for health, 2018 (arXiv:1812.00564); Ceballos et al.,
2020 (arXiv:2008.04137).

    for each batch B:
        party k:      h_k = f_k(x_k[B])                      Embed   -> Embedding
        label owner:  loss = l(g([h_1 .. h_M]), y[B]); step g
                      with combine = "mean", g of the mean over those who hold a row
        party k:      step f_k with dloss/dh_k               Descend -> Done

What crosses: embeddings up, their gradients down. What a party learns: gradients reveal
labels to a party that looks; embeddings reveal features to whoever knows f_k.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from colonnade.algorithms import embedding, heads
from colonnade.algorithms.algorithm import Algorithm, HeadInputs
from colonnade.core import Peers, Rows
from colonnade.settings import algorithms as settings

Config = settings.SplitNN


class FeatureOwner(embedding.DescendingFeatureOwner):
    """Holds columns and f_k."""


class LabelOwner(embedding.Concatenating):
    """Holds labels and g; drives."""

    config: Config

    @property
    def inputs(self) -> int:
        mean = self.config.combine == "mean"
        return (
            self.one_width('combine = "mean" needs embeddings of one width')
            if mean
            else super().inputs
        )

    def outputs(self, h: Mapping[str, Tensor], held: Tensor | None = None) -> Tensor:
        """g([h_1 .. h_M]), or g of their mean; `held` says how many parties hold each
        row, where not all do."""
        if self.config.combine == "mean":
            total = torch.stack(list(h.values())).sum(0)
            return self.model(total / (len(h) if held is None else held))  # type: ignore[no-any-return]
        return super().outputs(h)

    def of_batch(self, h: Mapping[str, Tensor], batch: str) -> Tensor:
        presence = self.peers.presence
        return self.outputs(h, None if presence is None else presence.count(batch))

    def heads(self) -> Tensor | None:
        """None for a mean, which mixes the parties."""
        return None if self.config.combine == "mean" else super().heads()


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    replies = peers.ask(embedding.Embed(rows.name))
    with torch.no_grad():
        return driver.of_batch(
            {k: r.values.tensor for k, r in replies.items()}, rows.name
        )


def head(given: HeadInputs[Config]) -> nn.Module:
    """The module g, to be exported."""
    if given.config.combine == "concat":
        return heads.concatenating(given, given.config.head_hidden)
    model = embedding.head(
        given.widths[0], given.outputs, given.config.head_hidden, seed=0
    )
    return heads.Joining(
        heads.loaded(model, given.state["model"]),
        lambda sent: torch.stack(sent).mean(0),
    )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=embedding.train,
    predict=predict,
    weighs_rows=True,
    releases={"embedding": embedding.EMBEDDING, "gradient": embedding.GRADIENT},
    head=head,
    combine=LabelOwner.outputs,
    head_norms=LabelOwner.head_norms,
    heads=LabelOwner.heads,
)
