"""The roles of organisations are built from agreed settings and their own holdings, the same wherever they are."""

from __future__ import annotations

import torch
from tests.federation.small_multi import federation, quick

from colonnade.core import Agreed
from colonnade.federation.multi_roles import batches_for, data_owner, epochs_of, label_owner
from colonnade.federation.seats import make_seats


def test_a_role_built_alone_is_the_one_of_the_whole() -> None:
    whole = federation(quick(algorithm={"local_epochs": 2}))
    settings, shares = whole.settings, whole.holdings
    assert epochs_of(settings) == 6
    batches = {name: batches_for(settings, name, share.splits) for name, share in shares.label_owners.items()}
    assert {name: len(one) for name, one in batches.items()} == {name: len(whole.agreed[name]) for name in batches}
    agreed = Agreed({name: (one, shares.label_owners[name].rows) for name, one in batches.items()})
    assert agreed.fingerprint() == whole.agreed.fingerprint()
    seats = make_seats(settings, shares, agreed, epochs=6, device=torch.device("cpu"))
    features = shares.data_owners["lab"].features
    assert features is not None
    lab = data_owner(settings, seats["lab"], features, agreed)
    for mine, theirs in zip(lab.model.parameters(), whole.owners["lab"].model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    north, event = label_owner(
        settings, seats["north"], shares.label_owners["north"].labels, shares.loss, batches["north"]
    )
    assert event is None
    north.meet(whole.label_owners["north"].peers.ask(whole.nested.introduce()))
    for mine, theirs in zip(north.model.parameters(), whole.label_owners["north"].model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
