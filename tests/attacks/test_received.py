"""An attacker sees what reached its party, with the rows it is about, and nothing else."""

from __future__ import annotations

import dataclasses

import torch
from tests.attacks.listening import heard

from colonnade.algorithms import compressed_vfl, splitnn, vimadmm
from colonnade.attacks.received import Knowledge, received, stacked
from colonnade.core import Transcript


def test_tensors_come_with_the_rows_of_their_batch() -> None:
    toy, transcript, own = heard(splitnn.ALGORITHM, 3)
    found = list(received(transcript, own.batches, ("gradient",)))
    assert [one.batch for one in found] == ["train/0/0", "train/0/1", "train/0/2"]
    for one in found:
        assert torch.equal(one.rows, toy.batches.rows(one.batch))
        assert one.values.shape == (32, 8)
        assert (one.event.kind, one.codec) == ("non-private", "identity")
    rows, values = stacked(iter(found))
    assert rows.shape == (96,)
    assert torch.equal(values[32:64], found[1].values)


def test_a_reply_names_its_batch_on_its_receipt_and_its_owner_too() -> None:
    toy, _, own = heard(vimadmm.ALGORITHM, 1)
    owner = toy.transport.of("label owner")
    found = [
        list(received(owner, own.batches, ("embedding", "logits"), name))
        for name in toy.parties
    ]
    assert [len(one) for one in found] == [1, 1, 1]
    assert all(torch.equal(one[0].rows, toy.batches.rows("train/0/0")) for one in found)


def test_what_comes_by_way_of_another_is_its_owners() -> None:
    _, transcript, own = heard(compressed_vfl.ALGORITHM, 1)
    assert {seen.sender for seen in transcript} == {"label owner"}
    assert len(list(received(transcript, own.batches, ("embedding",), "bob"))) == 1
    assert list(received(transcript, own.batches, ("embedding",), "ada")) == []


def test_what_is_not_one_line_per_row_is_not_stacked_and_heads_have_no_rows() -> None:
    _, transcript, own = heard(vimadmm.ALGORITHM, 1)
    assert len(stacked(received(transcript, own.batches, ("head",)))[0]) == 0
    assert len(stacked(received(Transcript("ada"), own.batches, ("gradient",)))[0]) == 0


def test_holdings_have_no_place_for_the_truth() -> None:
    """What an attack is given, by construction: the agreed rows and settings, and the
    party's own part."""
    names = [field.name for field in dataclasses.fields(Knowledge)]
    own = ["model", "columns", "stepped", "begun", "shown"]
    assert names == ["party", "batches", "config", "classes", "releases", *own]
