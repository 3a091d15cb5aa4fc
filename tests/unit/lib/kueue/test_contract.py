"""Kueue's contract: when a nomination may be written, and which."""

import msgspec
import pytest

from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kueue.contract import (
    clearing,
    deactivated,
    eviction_words,
    forbidden,
    nomination,
    waits_for_quota,
)
from berthmaster.lib.kueue.workloads import CheckState, KueueWorkload, WorkloadStatus
from tests.unit.hub.multikueue.hub_objects import CHECK, checks, condition, uid_of, workload

UID = uid_of("train")


def ready(**status: object) -> KueueWorkload:
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
    (ready(conditions=(condition("QuotaReserved"), condition("Evicted"))), "it is being evicted"),
    (ready(conditions=(condition("QuotaReserved", False),)), "no quota is reserved on the hub"),
    (deleting(), "it is being deleted"),
    (ready(admission_checks=()), "it does not have the check multikueue yet"),
    (ready(admission_checks=checks("Ready")), "its check multikueue is Ready"),
    (ready(admission_checks=checks("Retry")), "its check multikueue is Retry"),
    (ready(cluster_name="w1"), "w1 has it"),
]


@pytest.mark.parametrize(("found", "why"), REFUSED)
def test_nomination_needs_whole_contract(found: KueueWorkload, why: str) -> None:
    assert forbidden(found, CHECK) == why
    assert nomination(found, UID, CHECK, "w2") == (None, why)


def test_one_name_is_written_where_there_is_none() -> None:
    assert forbidden(ready(), CHECK) == ""
    assert nomination(ready(), UID, CHECK, "w1") == (("w1",), "")
    there = ready(nominated_cluster_names=("w3", "w1"))
    for name in ("w1", "w2"):
        assert nomination(there, UID, CHECK, name) == (None, "w3, w1 is nominated already")


def test_only_the_nomination_that_was_looked_at_is_cleared() -> None:
    there = ready(nominated_cluster_names=("w1", "w2"))
    assert clearing(there, UID, CHECK, ("w1", "w2")) == (True, "")
    assert clearing(there, UID, CHECK, ("w1",)) == (False, "w1, w2 is nominated by now")
    assert clearing(ready(), UID, CHECK, ("w1",)) == (False, "")
    assert clearing(there, "other", CHECK, ("w1", "w2"))[1] == "it is another Workload of this name"
    assert clearing(ready(cluster_name="w1"), UID, CHECK, ("w1",)) == (False, "w1 has it")


def test_an_equal_nomination_is_not_written_again() -> None:
    there = ready(nominated_cluster_names=("w1",))
    assert nomination(there, UID, CHECK, "w1") == (None, "")


def test_a_namesake_is_left_alone() -> None:
    other = msgspec.structs.replace(
        ready(), metadata=Metadata(name="job-train", namespace="team", uid="other")
    )
    assert nomination(other, UID, CHECK, "w1") == (None, "it is another Workload of this name")


def test_what_kueue_waits_for_is_told_in_its_own_words() -> None:
    assert waits_for_quota(workload()) == "waiting in line"
    assert waits_for_quota(ready()) == ""
    bare = msgspec.structs.replace(workload(), status=None)
    assert waits_for_quota(bare) == "Kueue has not looked at it yet"
    off = msgspec.structs.replace(
        workload(), spec=msgspec.structs.replace(workload().spec, active=False)
    )
    assert waits_for_quota(off) == "deactivated: its spec.active is false"


def test_what_kueue_has_switched_off_by_itself_says_why_in_its_words() -> None:
    """As v0.19.2 leaves a Workload whose owner MultiKueue has no adapter for."""
    said = 'AdmissionCheck in Rejected state: "multikueue" (No multikueue adapter found for owner'
    target = condition("DeactivationTarget", True, "AdmissionCheck", said)
    doomed = msgspec.structs.replace(workload(), status=WorkloadStatus(conditions=(target,)))
    assert deactivated(doomed) == said
    words = f"The workload is deactivated due to {said}"
    evicted = condition("Evicted", True, "DeactivatedDueToAdmissionCheck", words)
    off = msgspec.structs.replace(
        doomed,
        spec=msgspec.structs.replace(doomed.spec, active=False),
        status=WorkloadStatus(conditions=(evicted,)),
    )
    assert deactivated(off) == words
    # By a person it is only off, and an earlier eviction is no reason.
    by_hand = condition("Evicted", True, "Deactivated", "The workload is deactivated")
    status = WorkloadStatus(conditions=(by_hand,))
    assert deactivated(msgspec.structs.replace(off, status=status)) == "its spec.active is false"
    assert deactivated(workload()) == ""


def test_a_check_that_rejects_is_told_with_its_words() -> None:
    found = ready(
        admission_checks=(CheckState(name=CHECK, state="Rejected", message="no adapter"),)
    )
    assert forbidden(found, CHECK) == f"its check {CHECK} is Rejected: no adapter"


def test_why_an_attempt_ended_is_told_in_kueue_s_words() -> None:
    evicted = ready(conditions=(condition("Evicted", True, "Preempted", "by a bigger one"),))
    assert eviction_words(evicted) == "Preempted: by a bigger one"
    lost = ready(conditions=(condition("Evicted", True, "AdmissionCheck", "worker lost"),))
    assert eviction_words(lost) == (
        "AdmissionCheck: worker lost; doubtful: the lost copy may still run there"
    )
    assert eviction_words(workload()) == "waiting in line"
