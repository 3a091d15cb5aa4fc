"""What must hold of a plan for a new log, by what is known of the old one and of the pods."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from berthmaster.cli.recover.core import Plan
from berthmaster.lab.emulator.world import Group
from berthmaster.lib.lifecycle.states import HELD, LIVE
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.workload import Submitted
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from tests.simulation.bus import Message


class Recovery(NamedTuple):
    plan: Plan
    answered: Set[str]
    copies: Sequence[Message]  # all that the plan was made of
    reported: Set[tuple[str, Attempt]]  # what clusters say that they hold, or are about to claim


class Truth(NamedTuple):
    """Before the log lost anything, and what is in the clusters now."""

    workloads: Mapping[Key, Workload]
    groups: Mapping[str, Mapping[Attempt, Group]]  # by cluster: objects, with pods or without
    alive: Set[tuple[str, Attempt]]  # whose pods hold something
    doubtful: Set[Attempt]  # ended by the word of a person, whatever their pods do
    highest: int  # the last sequence that was ever used


def faults(recovery: Recovery, truth: Truth) -> Iterator[tuple[str, str]]:
    """Rules that are broken, and by what."""
    plan = recovery.plan
    if plan.first <= truth.highest:
        yield "no sequence is used twice", f"{plan.first} is not above {truth.highest}"
    carried = {key(one.tenant, one.id): one.workload for one in plan.carried}
    cancelled = {key(one.tenant, one.id) for one in plan.lines if one.outcome == "cancelled"}
    for cluster, attempt in sorted(truth.alive):
        name = key(attempt.tenant, attempt.id)
        work = truth.workloads.get(name)
        here = cluster, attempt.number
        if cluster not in recovery.answered or attempt in truth.doubtful:
            continue
        if work is None or not work.live or (work.cluster, work.attempt) != here:
            continue
        new = carried.get(name)
        is_there = new is not None and new.state in HELD and (new.cluster, new.attempt) == here
        if name in cancelled:
            holders = {c for c, a in truth.alive if key(a.tenant, a.id) == name}
            if len(holders) < 2:
                yield "only contradictions are cancelled", f"{attempt} on {cluster}"
        elif not is_there:
            yield "what runs is carried", f"{attempt} on {cluster}: {new}"
    for name, new in carried.items():
        tenant, _, workload_id = name.partition("/")
        attempt = Attempt(tenant, workload_id, new.attempt)
        is_asked = new.state in LIVE and new.cluster in recovery.answered
        is_denied = (new.cluster, attempt) not in recovery.reported
        if is_asked and is_denied and attempt not in truth.groups[new.cluster]:
            yield "what its cluster denies is queued again", f"{attempt} on {new.cluster}"
    for name in sorted(lost(recovery, truth)):
        if any(isinstance(m.body, Submitted) and m.subject == name for m in recovery.copies):
            yield "none is lost that a copy has", name
        for cluster in recovery.answered:
            for attempt, group in truth.groups[cluster].items():
                if key(attempt.tenant, attempt.id) == name and group.made.receipt:
                    yield "none is lost that a cluster holds", f"{attempt} on {cluster}"


def lost(recovery: Recovery, truth: Truth) -> set[Key]:
    """Workloads that the log had and the new one has not."""
    plan = recovery.plan
    there = {key(one.tenant, one.id) for one in (*plan.carried, *plan.tombstones)}
    return set(truth.workloads) - there
