"""Kueue's contract: when a nomination may be written, and which; and what an order may change."""

import msgspec
import pytest

from berthmaster.kubernetes.objects import Metadata
from berthmaster.kueue.contract import (
    eviction_words,
    forbidden,
    nomination,
    reordered,
    waits_for_quota,
)
from berthmaster.kueue.workloads import KueueWorkload, WorkloadStatus
from tests.unit.multikueue.hub_objects import CHECK, checks, condition, uid_of, workload

UID = uid_of("train")


def ready(**status: object) -> KueueWorkload:
    """One that may be nominated."""
    fields: dict[str, object] = {
        "conditions": (condition("QuotaReserved"),),
        "admission_checks": checks(),
    }
    return msgspec.structs.replace(
        workload(),
        status=WorkloadStatus(**(fields | status)),  # type: ignore[arg-type]
    )


def deleting() -> KueueWorkload:
    made = ready()
    meta = msgspec.structs.replace(made.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(made, metadata=meta)


REFUSED = [
    (workload(), "no quota is reserved on the hub"),
    (ready(conditions=(condition("QuotaReserved"), condition("Finished"))), "it is finished"),
    (
        ready(conditions=(condition("QuotaReserved"), condition("Evicted"))),
        "it is being evicted",
    ),
    (ready(conditions=(condition("QuotaReserved", False),)), "no quota is reserved on the hub"),
    (deleting(), "it is being deleted"),
    (ready(admission_checks=()), "it does not have the check multikueue yet"),
    (ready(admission_checks=checks("Ready")), "its check multikueue is Ready"),
    (ready(admission_checks=checks("Retry")), "its check multikueue is Retry"),
    (ready(cluster_name="w1"), "w1 has it"),
]


@pytest.mark.parametrize(("found", "why"), REFUSED)
def test_nothing_is_nominated_unless_all_of_the_contract_holds(
    found: KueueWorkload, why: str
) -> None:
    assert forbidden(found, CHECK) == why
    assert nomination(found, UID, CHECK, "w2") == (None, why)


def test_one_name_is_added_behind_those_that_are_there() -> None:
    assert forbidden(ready(), CHECK) == ""
    assert nomination(ready(), UID, CHECK, "w1") == (("w1",), "")
    there = ready(nominated_cluster_names=("w3", "w1"))
    assert nomination(there, UID, CHECK, "w2") == (("w3", "w1", "w2"), "")


def test_an_equal_nomination_is_not_written_again() -> None:
    there = ready(nominated_cluster_names=("w1", "w2"))
    assert nomination(there, UID, CHECK, "w1") == (None, "")


def test_a_namesake_is_left_alone() -> None:
    other = msgspec.structs.replace(
        ready(), metadata=Metadata(name="job-train", namespace="team", uid="other")
    )
    assert nomination(other, UID, CHECK, "w1") == (None, "it is another Workload of this name")


def test_the_api_takes_twenty_names() -> None:
    there = ready(nominated_cluster_names=tuple(f"w{n}" for n in range(20)))
    assert nomination(there, UID, CHECK, "x") == (None, "20 clusters are nominated already")


@pytest.mark.parametrize(
    ("current", "wanted", "written"),
    [
        (("a", "b"), ("b", "a"), ("b", "a")),
        (("a", "b"), ("a", "b"), None),
        (("a", "b"), ("a",), None),
        (("a", "b"), (), None),
        (("a", "b"), ("a", "c"), None),
        (("a",), ("a", "b"), None),
    ],
)
def test_an_order_never_changes_which_clusters_they_are(
    current: tuple[str, ...], wanted: tuple[str, ...], written: tuple[str, ...] | None
) -> None:
    assert reordered(current, wanted) == written


def test_what_kueue_waits_for_is_told_in_its_own_words() -> None:
    assert waits_for_quota(workload()) == "waiting in line"
    assert waits_for_quota(ready()) == ""
    bare = msgspec.structs.replace(workload(), status=None)
    assert waits_for_quota(bare) == "Kueue has not looked at it yet"
    off = msgspec.structs.replace(
        workload(), spec=msgspec.structs.replace(workload().spec, active=False)
    )
    assert waits_for_quota(off) == "switched off (spec.active is false)"


def test_why_an_attempt_ended_is_told_in_kueue_s_words() -> None:
    evicted = ready(conditions=(condition("Evicted", True, "Preempted", "by a bigger one"),))
    assert eviction_words(evicted) == "Preempted: by a bigger one"
    lost = ready(conditions=(condition("Evicted", True, "AdmissionCheck", "worker lost"),))
    assert eviction_words(lost) == (
        "AdmissionCheck: worker lost; doubtful: the lost copy may still run there"
    )
    assert eviction_words(workload()) == "waiting in line"
