"""What an agent's word proves of what it holds."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.control.door.core.receipts import Receipts
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.door import HeldAttempt, PlacementReceipt, ProvenAttempt
from berthmaster.lib.messages.placement import PodBinding
from tests.support.builders import job

TENANT, ID, CLUSTER = "team", "train", "red"
SIGNER = Receipts(b"k" * 32)
RECEIPT = PlacementReceipt(
    tenant=TENANT,
    id=ID,
    cluster=CLUSTER,
    attempt=2,
    request=job(ID),
    digest=request_digest(job(ID)),
    pods=(PodBinding(pod="main-0", node="n1"),),
    decision=7,
    sequence=20,
    submitted_sequence=10,
)
HELD = HeldAttempt(tenant=TENANT, id=ID, attempt=2, receipt=SIGNER.signed(RECEIPT))


def test_receipt_proves_the_attempt_that_it_names() -> None:
    proven = ProvenAttempt(tenant=TENANT, id=ID, attempt=2, receipt=RECEIPT)
    assert SIGNER.proven(CLUSTER, HELD) == proven


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "other"},
        {"id": "other"},
        {"attempt": 3},
        {"attempt": 1},
        {"receipt": ""},
        {"receipt": "x" * 1000},
        {"receipt": "ü.ü"},
        {"receipt": HELD.receipt.replace(".", "")},
        {"receipt": HELD.receipt.partition(".")[0]},
        {"receipt": "A" + HELD.receipt[1:]},
        {"receipt": Receipts(b"guessed").signed(RECEIPT)},
        {"receipt": SIGNER.signed(replace(RECEIPT, cluster="other"))},
    ],
    ids=repr,
)
def test_receipt_of_anything_else_proves_nothing(changes: dict[str, Any]) -> None:
    said = replace(HELD, **changes)
    unproven = ProvenAttempt(tenant=said.tenant, id=said.id, attempt=said.attempt)
    assert SIGNER.proven(CLUSTER, said) == unproven


def test_receipt_of_one_cluster_proves_nothing_of_another() -> None:
    assert SIGNER.proven("other", HELD).receipt is None
