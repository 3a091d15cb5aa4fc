"""What hold, release, evict, move and checkpointed come to, through the gateway's core."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.gateway.core.events import Logged, QueueSet
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import Answered, Append, Reload, Reloaded, Reply, Stored
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ChangeReply, OperatorReply, Refusal
from berthmaster.lib.messages.control import Cordon, JobDefaults, QueueSetting
from berthmaster.lib.messages.placement import HUB_CELL, Target
from berthmaster.lib.messages.workload import (
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Divide,
    Divided,
    Held,
    HoldReleased,
    HubObject,
    MoveRequested,
    Part,
    PartPlace,
    Progress,
    Progressed,
    Submitted,
    WorkloadEvent,
)
from tests.unit.control.gateway.stories import (
    ask,
    claimed,
    fresh,
    job,
    placed,
    running,
    submitted,
    succeeded,
)

QUEUED = (submitted(job()),)
PLACED = (*QUEUED, placed(job(), 1))
RUNS = (*PLACED, claimed(job(), 2))


def knowing(*events: WorkloadEvent) -> Gateway:
    gateway = fresh()
    for sequence, event in enumerate(events, 1):
        gateway.handle(Logged(event=event, sequence=sequence, stored_at_s=float(sequence)), 0.0)
    return gateway


def done(gateway: Gateway, verb: str, *, tenant: str | None = "ann", **body: Any) -> WorkloadEvent:
    """The event that it leads to, which is stored and told."""
    (step,) = gateway.handle(ask(verb, {"id": "train"} | body, tenant=tenant), 9.0)
    assert isinstance(step, Append), step
    sequence = step.event.after + 1
    (told,) = gateway.handle(Answered(ref="r1", outcome=Stored(sequence)), 9.0)
    assert isinstance(told, Reply)
    assert isinstance(told.reply, ChangeReply)
    gateway.handle(Logged(event=step.event, sequence=sequence, stored_at_s=9.0), 9.0)
    return step.event


def answer(gateway: Gateway, verb: str, *, tenant: str | None = "ann", **body: Any) -> Any:
    (step,) = gateway.handle(ask(verb, {"id": "train"} | body, tenant=tenant), 9.0)
    assert isinstance(step, Reply), step
    return step.reply


def refused(gateway: Gateway, verb: str, **body: Any) -> tuple[str, str, str]:
    reply = answer(gateway, verb, **body)
    assert isinstance(reply, Refusal), reply
    return reply.code, reply.field, reply.expected


def test_what_a_tenant_holds_it_releases_and_what_an_operator_holds_it_does_not() -> None:
    gateway = knowing(*QUEUED)
    held = done(gateway, "hold", reason="not yet")
    assert isinstance(held, Held)
    assert (held.who, held.operator, held.reason) == ("tenant ann", False, "not yet")
    assert answer(gateway, "hold").note == "tenant ann holds it already"
    assert isinstance(done(gateway, "release"), HoldReleased)
    assert answer(gateway, "release").note == "nobody held it"
    order = {"id": "train", "tenant": "ann", "who": "ada"}
    (step,) = gateway.handle(ask("hold_job", order, tenant=None), 9.0)
    assert isinstance(step, Append)
    assert isinstance(step.event, Held)
    assert (step.event.who, step.event.operator) == ("operator ada", True)
    gateway.handle(Answered(ref="r1", outcome=Stored(4)), 9.0)
    gateway.handle(Logged(event=step.event, sequence=4, stored_at_s=9.0), 9.0)
    assert refused(gateway, "release") == (
        "forbidden",
        "id",
        "a hold of your own; operator ada holds this one",
    )
    (step,) = gateway.handle(ask("release_job", order, tenant=None), 9.0)
    assert isinstance(step, Append)


def test_what_runs_is_held_only_by_whoever_says_that_it_may_be_ended() -> None:
    gateway = knowing(*RUNS)
    assert refused(gateway, "hold")[:2] == ("conflict", "evict")
    assert isinstance(done(gateway, "hold", evict=True), Held)


def test_who_goes_twice_has_been_told() -> None:
    gateway = knowing(*RUNS)
    event = done(gateway, "evict", reason="look")
    assert isinstance(event, MoveRequested)
    assert (event.how, event.cluster, event.attempt, event.who) == ("evict", "c1", 1, "tenant ann")
    assert answer(gateway, "evict").note == "it had been told to go before"


@pytest.mark.parametrize("verb", ["hold", "evict", "move", "checkpointed", "release"])
def test_of_what_has_ended_nothing_is_done_and_that_is_said(verb: str) -> None:
    life = (*RUNS, succeeded(job(), 3))
    gateway = knowing(*life)
    body = {"step": 1, "uri": "s3://a"} if verb == "checkpointed" else {}
    told = ("conflict", "id", "a workload that has not ended; this one succeeded")
    (step,) = gateway.handle(ask(verb, {"id": "train"} | body), 9.0)
    assert isinstance(step, Reload)  # it may be over by now: the log knows
    work = Workload(tenant="ann", id="train")
    for sequence, each in enumerate(life, 1):
        offer(work, each, sequence, float(sequence))  # type: ignore[arg-type]
    (said,) = gateway.handle(Reloaded(ref="r1", workload=work), 9.0)
    assert isinstance(said, Reply)
    assert isinstance(said.reply, Refusal)
    assert (said.reply.code, said.reply.field, said.reply.expected) == told


def test_a_move_needs_another_cluster_and_one_that_runs() -> None:
    assert refused(knowing(*QUEUED), "move")[2].startswith("a workload that runs")
    assert refused(knowing(*PLACED), "move")[0] == "unavailable"
    gateway = knowing(*RUNS)
    assert refused(gateway, "move", to="c1")[:2] == ("conflict", "to")
    event = done(gateway, "move", to="c2")
    assert isinstance(event, MoveRequested)
    assert (event.how, event.to) == ("move", "c2")
    assert answer(gateway, "move", to="c2").note == "that had been asked for before"


def test_what_kueue_governs_is_left_to_kueue() -> None:
    there = msgspec.structs.replace(placed(job(), 1), target=Target(via="worker"))
    gateway = knowing(*QUEUED, there, claimed(job(), 2))
    for verb, body in (("evict", {}), ("move", {}), ("hold", {"evict": True})):
        assert "Kueue" in refused(gateway, verb, **body)[2]


def test_a_workload_of_a_hub_is_evicted_moved_and_held_by_its_reconciler() -> None:
    there = msgspec.structs.replace(placed(job(), 1), target=Target(via="hub"), cell=HUB_CELL)
    queued = msgspec.structs.replace(QUEUED[0], cell=HUB_CELL)
    gateway = knowing(queued, there, claimed(job(), 2))
    assert refused(gateway, "hold")[:2] == ("conflict", "evict")
    assert isinstance(done(gateway, "hold", evict=True), Held)
    assert isinstance(done(knowing(queued), "hold"), Held)
    event = done(gateway, "move", to="c2")
    assert isinstance(event, MoveRequested)
    assert (event.how, event.to, event.cluster) == ("move", "c2", "c1")


def test_what_karmada_sends_is_ours_to_end() -> None:
    there = msgspec.structs.replace(placed(job(), 1), target=Target(via="hub"))
    origin = HubObject(namespace="team", name="train-job", uid="u", system="karmada")
    queued = msgspec.structs.replace(QUEUED[0], origin=origin)
    gateway = knowing(queued, there, claimed(job(), 2))
    assert isinstance(done(gateway, "move", to="c2"), MoveRequested)
    assert isinstance(done(gateway, "hold", evict=True), Held)


def test_how_far_a_job_is_is_told_while_it_runs_and_seldom() -> None:
    assert refused(knowing(*RUNS), "progressed", step=1)[:2] == ("conflict", "id")
    gateway = knowing(*RUNS, running(job(), 3))
    assert refused(gateway, "progressed", step=1, attempt=2)[1] == "attempt"
    assert refused(gateway, "progressed", step=-1)[:2] == ("invalid", "step")
    event = done(gateway, "progressed", step=1, loss=0.5, eta_s=60)
    assert isinstance(event, Progressed)
    assert event.progress == Progress(step=1, loss=0.5, eta_s=60)
    assert answer(gateway, "progressed", step=1, loss=0.5, eta_s=60).note == "that was known"
    assert refused(gateway, "progressed", step=2)[0] == "overloaded"


def test_a_checkpoint_is_of_the_last_attempt_and_holds_no_password() -> None:
    gateway = knowing(*RUNS)
    assert refused(gateway, "checkpointed", step=1, uri="s3://me:pw@b/1")[:2] == ("invalid", "uri")
    assert refused(gateway, "checkpointed", step=1, uri="s3://b/1", attempt=2)[1] == "attempt"
    assert refused(knowing(*QUEUED), "checkpointed", step=1, uri="s3://b/1")[0] == "conflict"
    event = done(gateway, "checkpointed", step=1, uri="s3://b/1")
    assert isinstance(event, Checkpointed)
    assert event.checkpoint == Checkpoint(step=1, uri="s3://b/1")
    assert answer(gateway, "checkpointed", step=1, uri="s3://b/1").note == "that was known"
    assert refused(gateway, "checkpointed", step=2, uri="s3://b/2")[0] == "overloaded"
    # Another tenant has no such workload, whatever it says.
    (step,) = gateway.handle(
        ask("checkpointed", {"id": "train", "step": 9, "uri": "s3://x"}, tenant="eve"), 9.0
    )
    assert not isinstance(step, Append)


def test_a_drain_is_a_cordon_with_a_deadline_ahead() -> None:
    gateway = fresh()
    body = {"cluster": "c1", "by_s": 8.0}
    (told,) = gateway.handle(ask("drain", body, tenant=None), 9.0)
    assert isinstance(told, Reply)
    assert isinstance(told.reply, Refusal)
    assert told.reply.field == "by_s"
    (put,) = gateway.handle(ask("drain", {**body, "by_s": 60.0, "who": "ada"}, tenant=None), 9.0)
    fact = Cordon(
        cluster="c1", cordoned=True, drain=True, drain_by_s=60.0, set_by="ada", set_at_s=9.0
    )
    assert put.fact == fact  # type: ignore[union-attr]
    (said,) = gateway.handle(Answered(ref="r1", outcome=Stored(1)), 9.0)
    assert isinstance(said, Reply)
    assert isinstance(said.reply, OperatorReply)


def test_a_queues_defaults_hold_where_a_request_says_nothing() -> None:
    gateway = fresh()
    defaults = JobDefaults(max_run_s=60.0, grace_s=5.0, preemptible=False)
    gateway.handle(QueueSet(setting=QueueSetting(queue="q", defaults=defaults), sequence=1), 0.0)
    body = b'{"id": "a", "queue": "q", "grace_s": 9, "preemptible": true}'
    (step,) = gateway.handle(ask("submit", body), 1.0)
    assert isinstance(step, Append)
    assert isinstance(step.event, Submitted)
    request = step.event.request
    assert (request.max_run_s, request.grace_s, request.preemptible) == (60.0, 9.0, True)
    (step,) = gateway.handle(ask("submit", b'{"id": "b", "queue": "q"}', ref="r2"), 1.0)
    assert isinstance(step, Append)
    assert isinstance(step.event, Submitted)
    assert step.event.request.preemptible is False


PART = Part(job="whole", attempt=1, number=0, clusters=("c1", "c2"), pods=(1, 1))
PARTS = tuple(PartPlace(id=f"train--1-{n}", cluster=f"c{n + 1}", pods=1) for n in (0, 1))


def test_about_one_part_of_a_gang_nothing_is_done_and_a_loose_part_is_moved() -> None:
    one = msgspec.structs.replace(job(), part=PART)
    gateway = knowing(submitted(one), placed(one, 1), claimed(one, 2))
    for verb in ("cancel", "hold", "evict", "move"):
        assert refused(gateway, verb) == ("conflict", "id", "whole, the job that this is a part of")
    assert isinstance(done(gateway, "checkpointed", step=1, uri="s3://a"), Checkpointed)
    loose = msgspec.structs.replace(one, part=msgspec.structs.replace(PART, gang=False))
    gateway = knowing(submitted(loose), placed(loose, 1), claimed(loose, 2))
    assert refused(gateway, "cancel")[1] == "id"
    assert isinstance(done(gateway, "move", to="c2"), MoveRequested)


def test_a_divided_job_is_cancelled_held_and_evicted_as_one_and_moved_by_its_loose_parts() -> None:
    whole = msgspec.structs.replace(job(), divide=Divide())
    divided = Divided(
        tenant="ann",
        id="train",
        after=1,
        at_s=0.0,
        by="resolver",
        attempt=1,
        parts=PARTS,
        decision=1,
    )
    log = (submitted(whole), divided)
    view = answer(knowing(*log), "get").workload
    assert (view.state, view.parts) == ("placed", PARTS)
    assert refused(knowing(*log), "move")[2] == (
        "a workload in one cluster: the parts of a gang stop and start together; evict it, and it "
        "waits for places for all of them"
    )
    loose = msgspec.structs.replace(whole, divide=Divide(gang=False))
    assert refused(knowing(submitted(loose), divided), "move")[2] == (
        "one of its parts: train--1-0 in c1, train--1-1 in c2"
    )
    assert refused(knowing(*log), "hold")[1] == "evict"
    assert isinstance(done(knowing(*log), "hold", evict=True), Held)
    assert isinstance(done(knowing(*log), "evict"), MoveRequested)
    assert isinstance(done(knowing(*log), "cancel"), CancelRequested)


def test_an_operator_who_misspells_a_tenant_is_told_and_a_tenant_is_not() -> None:
    gateway = knowing(*QUEUED)

    def asked(tenant: str, by: str | None) -> Refusal:
        body = {"id": "nobody"} | ({} if by else {"tenant": tenant})
        gateway.handle(ask("evict" if by else "evict_job", body, tenant=by), 9.0)
        (told,) = gateway.handle(Reloaded(ref="r1", workload=None), 9.0)
        assert isinstance(told, Reply)
        assert isinstance(told.reply, Refusal)
        return told.reply

    right = "the id of a workload of this tenant"
    assert asked("anna", None).expected == f"{right}; did you mean the tenant 'ann'?"
    assert asked("ann", None).expected == right
    assert asked("", "anna").expected == right
