"""Where a queue may stand among others: each fault has its field and what would be right."""

from typing import Any

import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from berthmaster.lib.requests.queues import MAX_QUEUES_ABOVE, NO_QUEUES, placing_fault, refusal_of
from tests.support.builders import job


def queues(**named: dict[str, Any]) -> dict[str, QueueSetting]:
    made = {name: QueueSetting(queue=name, **fields) for name, fields in named.items()}
    return dict(NO_QUEUES) | made


THERE = queues(
    research={"guarantee_gpu_milli": 10_000, "capability_gpu_milli": 20_000},
    vision={"parent": "research", "guarantee_gpu_milli": 6000},
    speech={"parent": "research"},
    kueue={"via": "worker"},
    gone={"deleted": True},
    limited={"capability_gpu_milli": 4000},
)


def told(name: str, **fields: Any) -> tuple[str, str] | None:
    found = placing_fault(THERE, QueueSetting(queue=name, **fields))
    return (found.field, found.expected) if isinstance(found, Refusal) else None


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ("nobody", "a queue that was set; there is none of this name"),
        ("gone", "a queue that was set; there is none of this name"),
        ("new", "another queue than itself"),
        ("default", "a queue that takes no requests; what names no queue goes to this one"),
        ("kueue", "a queue that is placed directly; Kueue governs this one, with its cohorts"),
    ],
)
def test_a_parent_that_cannot_be_one(parent: str, expected: str) -> None:
    assert told("new", parent=parent) == ("parent", expected)


def test_a_circle_is_told_as_the_way_round() -> None:
    assert told("research", parent="vision") == (
        "parent",
        "a queue that is not below this one; this goes round: research -> vision -> research",
    )


def test_where_kueue_governs_there_is_no_parent_and_no_child() -> None:
    assert told("new", parent="research", via="hub") == (
        "parent",
        "none: Kueue governs the queue 'new', and its order and quota",
    )
    assert told("research", via="worker") == ("via", "direct: it is the parent of speech, vision")


def test_a_parent_goes_after_its_children() -> None:
    assert told("research", deleted=True) == (
        "deleted",
        (
            "false: it is the parent of speech, vision; give these another parent, or delete them "
            "first"
        ),
    )
    assert told("vision", parent="research", deleted=True) is None


def test_children_are_guaranteed_no_more_than_their_parent_has() -> None:
    assert told("speech", parent="research", guarantee_gpu_milli=4000) is None
    assert told("speech", parent="research", guarantee_gpu_milli=4001) == (
        "guarantee_gpu_milli",
        (
            "less: the children of 'research' would be guaranteed 10.001 GPUs together, and it is "
            "guaranteed 10 GPUs"
        ),
    )
    resources = {"gpu/H100": QueueAmounts(guarantee=5000)}
    assert told("speech", parent="research", resources=resources) == (
        "resources",
        (
            "less: the children of 'research' would be guaranteed 11 GPUs together, and it is "
            "guaranteed 10 GPUs"
        ),
    )
    assert told("research", guarantee_gpu_milli=5000) == (
        "guarantee_gpu_milli",
        "at least 6 GPUs: so much its children are guaranteed together",
    )
    assert told("new", parent="limited", guarantee_gpu_milli=5000) == (
        "guarantee_gpu_milli",
        (
            "less: the children of 'limited' would be guaranteed 5 GPUs together, and it is "
            "limited to 4 GPUs"
        ),
    )
    assert told("research", capability_gpu_milli=5000) == (
        "capability_gpu_milli",
        "at least 6 GPUs: so much its children are guaranteed together",
    )


def test_what_a_grandchild_is_guaranteed_counts_at_the_top() -> None:
    there = THERE | queues(mid={"parent": "limited"})
    found = placing_fault(there, QueueSetting(queue="leaf", parent="mid", guarantee_gpu_milli=5000))
    assert found is not None
    assert (found.field, "children of 'limited'" in found.expected) == ("guarantee_gpu_milli", True)


def test_a_tree_has_so_many_levels_at_most() -> None:
    deep: dict[str, Any] = {"q0": {}}
    for n in range(1, MAX_QUEUES_ABOVE + 1):
        deep[f"q{n}"] = {"parent": f"q{n - 1}"}
    found = placing_fault(queues(**deep), QueueSetting(queue="x", parent=f"q{MAX_QUEUES_ABOVE}"))
    assert found is not None
    assert found.expected == f"a queue with at most {MAX_QUEUES_ABOVE - 1} above it"
    fits = QueueSetting(queue="x", parent=f"q{MAX_QUEUES_ABOVE - 1}")
    assert placing_fault(queues(**deep), fits) is None


def test_a_request_names_a_queue_without_others_below_it() -> None:
    there = THERE | queues(secret={"parent": "research", "tenants": ("rival",)})
    found = refusal_of(there, "us", job(queue="research"), {})
    assert found is not None
    assert (found.code, found.field, found.expected) == (
        "invalid",
        "queue",
        "a queue without others below it; below this one: speech, vision",
    )
    assert refusal_of(there, "us", job(queue="vision"), {}) is None
    # Two that are each other's parents, as two people may set at once: neither is one.
    circle = queues(a={"parent": "b"}, b={"parent": "a"})
    assert refusal_of(circle, "us", job(queue="a"), {}) is None
