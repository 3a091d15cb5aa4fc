"""What requests lead to, step by step, whatever the log answers."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.control.gateway.core.events import (
    Abandoned,
    Breathed,
    CaughtUp,
    CordonSet,
    Logged,
    LogReplaced,
    LogSize,
    QueueSet,
    QueuesKnown,
    Requested,
    RuntimeSet,
    Storing,
    StoryRead,
    Tick,
    UnreadableEvent,
)
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.gateway.core.instructions import Breathe, Instruction, ReadStory
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    PutControl,
    Refused,
    Reload,
    Reloaded,
    Reply,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.api import (
    ChangeReply,
    GetReply,
    GetRequest,
    ListReply,
    OperatorReply,
    RecordedEvent,
    Refusal,
    SubmitReply,
    WorkloadView,
)
from berthmaster.lib.messages.control import (
    ClusterLost,
    Cordon,
    GpuCordon,
    QueuePlace,
    QueueSetting,
)
from berthmaster.lib.messages.runtimes import Runtime, RuntimeSetting
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    PodSet,
    Reprioritized,
    Submitted,
    WorkloadEvent,
)
from tests.unit.control.gateway.stories import (
    BY,
    ask,
    cancelled,
    claimed,
    evicted,
    fresh,
    job,
    log,
    placed,
    running,
    submitted,
    succeeded,
)

AGAIN = "an answer is not certain now; repeating the request is safe"
UNCERTAIN = Refusal(code="unavailable", field="", value="", expected=AGAIN, retry=True)


def say(reply: object, ref: str = "r1") -> list[Instruction]:
    return [Reply(ref=ref, reply=reply)]  # type: ignore[arg-type] # any reply will do


def stored(sequence: int, ref: str = "r1") -> Answered:
    return Answered(ref=ref, outcome=Stored(sequence))


def folded(*events: WorkloadEvent) -> Workload:
    work = Workload(tenant="ann", id=events[0].id)
    for sequence, event in enumerate(events, 1):
        offer(work, event, sequence, float(sequence))
    return work


def reloaded(*events: WorkloadEvent) -> Reloaded:
    return Reloaded(ref="r1", workload=folded(*events) if events else None)


def reload(name: str = "train") -> list[Instruction]:
    return [Reload(ref="r1", tenant="ann", id=name)]


def append(event: WorkloadEvent) -> list[Instruction]:
    return [Append(ref="r1", event=event)]


# submit


def test_a_submit_is_answered_when_it_is_stored_and_not_before() -> None:
    gateway = fresh(caught_up=False)  # needs no view: the guard decides
    assert gateway.handle(ask("submit", job()), 1.0) == append(submitted(job()))
    assert gateway.in_flight == 1
    assert gateway.handle(stored(7), 1.1) == say(SubmitReply(tenant="ann", id="train", sequence=7))
    assert gateway.in_flight == 0


def test_the_same_submit_again_gets_the_same_answer_with_the_state_of_now() -> None:
    # From the view, without a read, while the workload is open …
    gateway = fresh()
    log(gateway, submitted(job()), placed(job(), 1))
    existing = SubmitReply(tenant="ann", id="train", sequence=1, existing=True, state="placed")
    assert gateway.handle(ask("submit", job()), 5.0) == say(existing)

    # … and from the log by a gateway that has not read it yet.
    other = fresh(caught_up=False)
    assert other.handle(ask("submit", job()), 1.0) == append(submitted(job()))
    assert other.handle(Answered(ref="r1", outcome=Refused(2)), 1.1) == reload()
    assert other.handle(reloaded(submitted(job()), placed(job(), 1)), 1.2) == say(existing)


def test_other_content_under_the_same_id_is_a_conflict() -> None:
    gateway = fresh()
    log(gateway, submitted(job()))
    refusal = Refusal(
        code="conflict",
        field="id",
        value='"train"',
        expected="an id that was not used before; "
        "this one belongs to a workload of other content, which is queued",
    )
    assert gateway.handle(ask("submit", job(priority=1)), 5.0) == say(refusal)


def test_a_tombstone_still_answers_for_its_id_and_content() -> None:
    gateway = fresh()
    log(gateway, succeeded(job(), 12), start=40)
    assert gateway.handle(ask("submit", job()), 50.0) == append(submitted(job(), at_s=50.0))
    assert gateway.handle(Answered(ref="r1", outcome=Refused(40)), 50.0) == reload()
    tomb = Workload(tenant="ann", id="train")
    offer(tomb, succeeded(job(), 12), 40, 40.0)
    assert gateway.handle(Reloaded(ref="r1", workload=tomb), 50.0) == say(
        SubmitReply(tenant="ann", id="train", sequence=40, existing=True, state="succeeded")
    )


def test_an_id_whose_tombstone_goes_in_between_is_free_again() -> None:
    gateway = fresh()
    gateway.handle(ask("submit", job()), 1.0)
    assert gateway.handle(Answered(ref="r1", outcome=Refused(40)), 1.0) == reload()
    assert gateway.handle(reloaded(), 2.0) == append(submitted(job(), at_s=2.0))
    assert gateway.handle(stored(41), 2.0) == say(
        SubmitReply(tenant="ann", id="train", sequence=41)
    )


def test_an_unknown_outcome_is_said_to_be_one() -> None:
    gateway = fresh()
    gateway.handle(ask("submit", job()), 1.0)
    told = msgspec.structs.replace(UNCERTAIN, expected=f"{AGAIN} (no answer)")
    assert gateway.handle(Answered(ref="r1", outcome=Unknown("no answer")), 9.0) == say(told)


def test_while_nothing_is_stored_all_but_one_now_and_then_are_refused_at_once() -> None:
    gateway = fresh()
    log(gateway, submitted(job("old")))
    gateway.handle(Storing("no room"), 10.0)
    expected = "no room; repeating the request is safe"
    refusal = msgspec.structs.replace(UNCERTAIN, expected=expected)

    # What is known gets its answer, what is new is refused, a change as well.
    existing = SubmitReply(tenant="ann", id="old", sequence=1, existing=True, state="queued")
    assert gateway.handle(ask("submit", job("old")), 10.0) == say(existing)
    assert gateway.handle(ask("submit", job()), 10.0) == say(refusal)
    assert gateway.handle(ask("cancel", {"id": "old"}), 10.0) == say(refusal)

    # Some seconds later one is tried, and the next ones are not, whatever comes of it.
    tried = append(submitted(job(), at_s=15.0))
    assert gateway.handle(ask("submit", job()), 15.0) == tried
    assert gateway.handle(ask("cancel", {"id": "old"}, ref="r2"), 16.0) == [
        Reply(ref="r2", reply=refusal)
    ]
    gateway.handle(stored(8), 17.0)
    gateway.handle(Storing(""), 17.0)
    assert gateway.handle(ask("submit", job("next")), 17.0) == append(
        submitted(job("next"), at_s=17.0)
    )


def test_a_wish_that_cannot_be_stored_waits_for_the_next_tick() -> None:
    gateway = fresh()
    gateway.handle(Storing("no room"), 10.0)
    asked = CancelRequested(
        tenant="ann", id="train", after=3, at_s=1.0, by=BY, cluster="c1", reason=""
    )
    log(gateway, submitted(job()), placed(job(), 1), claimed(job(), 2), asked)
    gone = Logged(event=evicted(job(), 4), sequence=5, stored_at_s=5.0)
    assert gateway.handle(gone, 11.0) == []
    assert gateway.handle(Tick(), 12.0) == []
    (tried,) = gateway.handle(Tick(), 15.0)
    assert isinstance(tried, Append)
    assert isinstance(tried.event, Cancelled)


def test_a_submit_that_takes_too_long_is_given_up_once_and_a_late_outcome_is_nobodys() -> None:
    gateway = fresh()
    gateway.handle(ask("submit", job()), 1.0)
    assert gateway.handle(Abandoned(ref="r1"), 9.0) == say(UNCERTAIN)
    assert gateway.handle(Abandoned(ref="r1"), 9.0) == []
    assert gateway.handle(stored(7), 9.1) == []


def test_a_gpu_model_that_nobody_has_is_accepted() -> None:
    wish = job(pod_sets=(PodSet(gpus=1, gpu_models=("Z9000",)),))
    assert fresh().handle(ask("submit", wish), 1.0) == append(submitted(wish))


def test_until_the_queues_are_known_a_submit_is_put_off() -> None:
    gateway = Gateway(by=BY)
    assert gateway.handle(ask("submit", job()), 1.0) == say(
        Refusal(
            code="unavailable",
            field="",
            value="",
            expected="the queues have not been read yet",
            retry=True,
        )
    )


def queue_trouble(code: str, value: str, wrong: str) -> Refusal:
    return Refusal(
        code=code,  # type: ignore[arg-type] # one of the codes
        field="queue",
        value=f'"{value}"',
        expected=f"a queue that takes requests of tenant 'ann'; {wrong}",
    )


@pytest.mark.parametrize(
    ("queue", "refusal"),
    [
        (
            "resaerch",
            queue_trouble(
                "not_found",
                "resaerch",
                "this one does not exist or is not open to it. "
                "did you mean 'research'? There are: default, research",
            ),
        ),
        (
            "secret",
            queue_trouble(
                "not_found",
                "secret",
                "this one does not exist or is not open to it. There are: default, research",
            ),
        ),
        ("old", queue_trouble("forbidden", "old", "it was deleted. There are: default, research")),
    ],
)
def test_a_queue_that_is_not_the_tenants_to_use_is_refused(queue: str, refusal: Refusal) -> None:
    gateway = fresh()
    for sequence, setting in enumerate(
        (
            QueueSetting(queue="old"),
            QueueSetting(queue="research", tenants=("bob", "ann")),
            QueueSetting(queue="secret", tenants=("bob",)),
            QueueSetting(queue="old", deleted=True),
        ),
        1,
    ):
        gateway.handle(QueueSet(setting=setting, sequence=sequence), 0.0)
    gateway.handle(QueueSet(setting=QueueSetting(queue="old"), sequence=1), 0.0)  # late news
    # Looked up first: an old acquaintance is answered even if its queue is gone.
    asked = job(queue=queue)
    assert gateway.handle(ask("submit", asked), 1.0) == reload()
    assert gateway.handle(reloaded(), 1.0) == say(refusal)
    gateway.handle(ask("submit", asked), 1.0)
    assert gateway.handle(reloaded(submitted(asked)), 1.0) == say(
        SubmitReply(tenant="ann", id="train", sequence=1, existing=True)
    )


def test_whether_a_request_was_taken_comes_before_what_holds_now() -> None:
    gateway = fresh()
    settings = QueueSetting(queue="team"), QueueSetting(queue="child", parent="team")
    for sequence, setting in enumerate(settings, 1):
        gateway.handle(QueueSet(setting=setting, sequence=sequence), 0.0)
    asked = job(queue="team")  # it takes no requests any more
    assert gateway.handle(ask("submit", asked), 1.0) == reload()
    assert gateway.handle(reloaded(submitted(asked)), 1.0) == say(
        SubmitReply(tenant="ann", id="train", sequence=1, existing=True)
    )
    # Where that cannot be read, nobody is told that a request is wrong which may be running.
    gateway.handle(ask("submit", asked), 1.0)
    [reply] = gateway.handle(Reloaded(ref="r1", workload=None, failed="no answer"), 1.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.reply, Refusal)
    assert (reply.reply.code, reply.reply.retry) == ("unavailable", True)
    gateway.handle(ask("submit", asked), 1.0)
    [reply] = gateway.handle(reloaded(), 1.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.reply, Refusal)
    assert (reply.reply.code, reply.reply.field) == ("invalid", "queue")


def test_a_runtime_is_set_put_into_requests_and_kept_with_them_as_it_was() -> None:
    gateway = fresh()
    body = {"runtime": "tune", "template": {"command": ["tune"], "node_labels": {"pool": "a"}}}
    order = Requested(ref="r1", verb="runtime", data=msgspec.json.encode(body))
    [put] = gateway.handle(order, 5.0)
    assert isinstance(put, PutControl)
    setting = put.fact
    assert isinstance(setting, RuntimeSetting)
    assert (setting.set_by, setting.set_at_s, len(setting.version)) == (BY, 5.0, 12)
    gateway.handle(stored(3), 5.0)

    asked = job(runtime=Runtime(name="tune"))
    [append_] = gateway.handle(ask("submit", asked), 6.0)
    assert isinstance(append_, Append)
    event = append_.event
    assert isinstance(event, Submitted)
    used = event.request.runtime_used
    assert used is not None
    assert (used.version, used.template, used.digest) == (
        setting.version,
        setting.template,
        request_digest(asked),
    )
    assert event.digest == request_digest(asked)
    assert event.request.pod_sets[0].node_labels == {"pool": "a"}
    gateway.handle(stored(4), 6.0)

    # Removed by another gateway: what is known of it is as new as its sequence.
    gone = msgspec.structs.replace(setting, deleted=True)
    gateway.handle(RuntimeSet(setting=setting, sequence=2), 7.0)
    gateway.handle(RuntimeSet(setting=gone, sequence=9), 7.0)
    assert gateway.handle(ask("submit", job("late", runtime=Runtime(name="tune"))), 8.0) == (
        reload("late")
    )
    [reply] = gateway.handle(reloaded(), 8.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.reply, Refusal)
    assert (reply.reply.code, reply.reply.field) == ("not_found", "runtime.name")

    # What a template may not set is refused, and nothing is stored.
    bad = msgspec.json.encode({"runtime": "bad", "template": {"hostPath": "/"}})
    [reply] = gateway.handle(Requested(ref="r2", verb="runtime", data=bad), 9.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.reply, Refusal)
    assert reply.reply.field == "template.hostPath"


def test_a_queue_takes_no_larger_jobs_and_lets_no_more_of_them_wait_than_it_may() -> None:
    gateway = fresh()
    setting = QueueSetting(queue="small", max_job_gpu_milli=4000, max_waiting_jobs=1)
    gateway.handle(QueueSet(setting=setting, sequence=1), 0.0)
    large = job("large", queue="small", pod_sets=(PodSet(count=5, gpus=1),))
    gateway.handle(ask("submit", large), 1.0)
    assert gateway.handle(reloaded(), 1.0) == say(
        Refusal(
            code="invalid",
            field="pod_sets",
            value="5 GPUs in all pods",
            expected="at most 4 GPUs in a job of the queue 'small'",
        )
    )
    first, second = job("first", queue="small"), job("second", queue="small")
    [step] = gateway.handle(ask("submit", first), 1.0)
    assert isinstance(step, Append)
    gateway.handle(stored(1), 1.0)
    gateway.handle(Logged(event=submitted(first), sequence=1, stored_at_s=1.0), 1.0)
    gateway.handle(ask("submit", second), 2.0)
    assert gateway.handle(reloaded(), 2.0) == say(
        Refusal(
            code="overloaded",
            field="",
            value="",
            expected="the queue 'small' lets 1 jobs wait, and they do",
            retry=True,
        )
    )
    # Once the first has its place another one may wait.
    gateway.handle(Logged(event=placed(first, 1), sequence=2, stored_at_s=3.0), 3.0)
    [step] = gateway.handle(ask("submit", second), 4.0)
    assert isinstance(step, Append)


def test_the_queue_says_whose_decider_places_a_request() -> None:
    gateway = fresh()
    places = {"hub": QueuePlace(namespace="research", local_queue="gpus")}
    for sequence, setting in enumerate(
        (
            QueueSetting(queue="by-hub", via="hub", places=places),
            QueueSetting(queue="by-worker", via="worker"),
        ),
        1,
    ):
        gateway.handle(QueueSet(setting=setting, sequence=sequence), 0.0)
    for queue, cell in (("by-hub", "hub"), ("by-worker", "all"), ("default", "all")):
        [step] = gateway.handle(ask("submit", job(queue=queue), ref=queue), 1.0)
        assert isinstance(step, Append)
        assert isinstance(step.event, Submitted)
        assert (step.event.cell, step.event.origin) == (cell, None)


def test_near_the_size_limit_new_submits_are_refused_and_changes_are_not() -> None:
    gateway = fresh()
    log(gateway, submitted(job()))
    gateway.handle(LogSize(bytes=90, max_bytes=100), 0.0)
    gateway.handle(ask("submit", job("second")), 1.0)
    assert gateway.handle(reloaded(), 1.0) == say(
        Refusal(
            code="overloaded",
            field="",
            value="",
            expected="the log of workloads is nearly full; running jobs are not affected",
            retry=True,
        )
    )
    (step,) = gateway.handle(ask("cancel", {"id": "train"}), 1.0)
    assert isinstance(step, Append)
    gateway.handle(stored(2), 1.0)

    gateway.handle(LogSize(bytes=89, max_bytes=100), 2.0)
    (step,) = gateway.handle(ask("submit", job("second")), 2.0)
    assert isinstance(step, Append)
    gateway.handle(Abandoned(ref="r1"), 2.0)
    gateway.handle(LogSize(bytes=10**15, max_bytes=-1), 2.0)  # no limit
    (step,) = gateway.handle(ask("submit", job("third")), 2.0)
    assert isinstance(step, Append)


def test_more_requests_than_the_bound_are_refused_at_once() -> None:
    gateway = fresh(max_in_flight=1)
    gateway.handle(ask("submit", job("one"), ref="r1"), 1.0)
    crowd = Refusal(
        code="overloaded", field="", value="", expected="at most 1 requests at once", retry=True
    )
    assert gateway.handle(ask("submit", job("two"), ref="r2"), 1.0) == say(crowd, "r2")
    gateway.handle(stored(1), 1.0)
    (step,) = gateway.handle(ask("submit", job("two"), ref="r2"), 1.0)
    assert isinstance(step, Append)


# cancel and reprioritize


def cancel_event(after: int, *, attempt: int = 0, cluster: str = "") -> Cancelled:
    return Cancelled(
        tenant="ann",
        id="train",
        after=after,
        at_s=9.0,
        by=BY,
        cause="r1",
        attempt=attempt,
        cluster=cluster,
        digest=request_digest(job()),
        submitted_at_s=1.0,
        reason="enough",
    )


def cancel_wish(after: int) -> CancelRequested:
    return CancelRequested(
        tenant="ann",
        id="train",
        after=after,
        at_s=9.0,
        by=BY,
        cause="r1",
        cluster="c1",
        reason="enough",
    )


def changed(state: str, note: str = "") -> ChangeReply:
    return ChangeReply(tenant="ann", id="train", state=state, note=note)  # type: ignore[arg-type]


CANCEL = ask("cancel", {"id": "train", "reason": "enough"})
ASKED = "its executor was asked to stop it"
S, P, C = submitted(job()), placed(job(), 1), claimed(job(), 2)


@pytest.mark.parametrize(
    ("events", "event", "reply"),
    [
        ((S,), cancel_event(1), changed("cancelled")),
        ((S, P), cancel_event(2, attempt=1, cluster="c1"), changed("cancelled")),
        ((S, P, C), cancel_wish(3), changed("claimed", ASKED)),
        ((S, P, C, running(job(), 3)), cancel_wish(4), changed("running", ASKED)),
        ((S, P, C, evicted(job(), 3)), cancel_event(4, attempt=1), changed("cancelled")),
    ],
)
def test_a_cancel_ends_what_nobody_holds_and_asks_whoever_holds_it(
    events: tuple[WorkloadEvent, ...], event: WorkloadEvent, reply: ChangeReply
) -> None:
    gateway = fresh()
    log(gateway, *events)
    assert gateway.handle(CANCEL, 9.0) == append(event)
    assert gateway.handle(stored(9), 9.0) == say(reply)


@pytest.mark.parametrize(
    ("events", "reply"),
    [
        ((S, cancelled(job(), 1)), changed("cancelled", "it had ended before")),
        ((S, P, C, succeeded(job(), 3)), changed("succeeded", "it had ended before")),
        (
            (S, P, C, cancel_wish(3)),
            changed("claimed", "its executor had been asked to stop it before"),
        ),
    ],
)
def test_cancelling_what_is_over_or_asked_for_changes_nothing(
    events: tuple[WorkloadEvent, ...], reply: ChangeReply
) -> None:
    gateway = fresh(caught_up=False)
    assert gateway.handle(CANCEL, 9.0) == reload()
    assert gateway.handle(reloaded(*events), 9.0) == say(reply)


def test_a_cancel_that_lost_the_race_looks_again_and_does_what_is_right_then() -> None:
    gateway = fresh()
    log(gateway, S, P)
    assert gateway.handle(CANCEL, 9.0) == append(cancel_event(2, attempt=1, cluster="c1"))
    # An executor claimed it in between.
    assert gateway.handle(Answered(ref="r1", outcome=Refused(3)), 9.0) == reload()
    assert gateway.handle(reloaded(S, P, C), 9.0) == append(cancel_wish(3))
    # Nobody knows what became of that one: look again, and there it is.
    assert gateway.handle(Answered(ref="r1", outcome=Unknown("?")), 9.0) == reload()
    assert gateway.handle(reloaded(S, P, C, cancel_wish(3)), 9.0) == say(
        changed("claimed", "its executor had been asked to stop it before")
    )


def test_a_change_gives_up_when_the_workload_never_stands_still() -> None:
    gateway = fresh(max_tries=2)
    log(gateway, S)
    gateway.handle(CANCEL, 9.0)
    gateway.handle(Answered(ref="r1", outcome=Refused(2)), 9.0)
    gateway.handle(reloaded(S, P), 9.0)
    assert gateway.handle(Answered(ref="r1", outcome=Refused(3)), 9.0) == say(
        Refusal(
            code="unavailable",
            field="",
            value="",
            expected="the workload keeps changing; repeating the request is safe",
            retry=True,
        )
    )


def test_what_does_not_exist_cannot_be_cancelled() -> None:
    gateway = fresh()
    assert gateway.handle(CANCEL, 9.0) == reload()
    assert gateway.handle(reloaded(), 9.0) == say(
        Refusal(
            code="not_found",
            field="id",
            value='"train"',
            expected="the id of a workload of this tenant",
        )
    )


def test_a_new_priority_is_written_once() -> None:
    gateway = fresh()
    log(gateway, S, P)
    wish = ask("reprioritize", {"id": "train", "priority": 7})
    event = Reprioritized(
        tenant="ann", id="train", after=2, at_s=9.0, by=BY, cause="r1", priority=7
    )
    assert gateway.handle(wish, 9.0) == append(event)
    assert gateway.handle(stored(3), 9.0) == say(changed("placed"))
    # Until the view has seen it, the log is asked; afterwards nothing is left to do.
    assert gateway.handle(wish, 9.0) == reload()
    assert gateway.handle(Abandoned(ref="r1"), 9.0) == say(UNCERTAIN)
    log(gateway, event, start=3)
    assert gateway.handle(wish, 9.0) == say(changed("placed", "it had this priority before"))


def test_no_priority_is_above_what_the_queue_lets_have() -> None:
    gateway = fresh()
    setting = QueueSetting(queue="default", max_priority=5)
    gateway.handle(QueueSet(setting=setting, sequence=1), 0.0)
    log(gateway, S)
    [told] = gateway.handle(ask("reprioritize", {"id": "train", "priority": 7}), 9.0)
    assert isinstance(told, Reply)
    assert isinstance(told.reply, Refusal)
    assert (told.reply.field, told.reply.value) == ("priority", "7")
    early = Gateway(by=BY)
    early.handle(CaughtUp(), 0.0)
    log(early, S)
    [put_off] = early.handle(ask("reprioritize", {"id": "train", "priority": 7}), 9.0)
    assert isinstance(put_off, Reply)
    assert isinstance(put_off.reply, Refusal)
    assert (put_off.reply.code, put_off.reply.retry) == ("unavailable", True)
    [lower] = gateway.handle(ask("reprioritize", {"id": "train", "priority": -7}), 9.0)
    assert isinstance(lower, Append)  # down is always right
    gateway = fresh()
    gateway.handle(QueueSet(setting=setting, sequence=1), 0.0)
    gateway.handle(ask("submit", job(priority=6)), 1.0)
    [refused] = gateway.handle(reloaded(), 1.0)
    assert isinstance(refused, Reply)
    assert isinstance(refused.reply, Refusal)
    assert refused.reply.field == "priority"


def test_a_cancel_that_an_eviction_overtook_is_carried_through() -> None:
    gateway = fresh()
    log(gateway, S, P, C, cancel_wish(3))
    (step,) = gateway.handle(Logged(event=evicted(job(), 4), sequence=5, stored_at_s=5.0), 9.0)
    reason = "its cancel had been requested before it was evicted"
    event = msgspec.structs.replace(
        cancel_event(5, attempt=1), cause="wish/ann/train", reason=reason
    )
    assert step == Append(ref="wish/ann/train", event=event)
    # The log is away just now: tried again at the next tick, and nobody gets a reply.
    (step,) = gateway.handle(Answered(ref=step.ref, outcome=Unknown("?")), 9.0)
    assert step == Reload(ref="wish/ann/train", tenant="ann", id="train")
    assert gateway.handle(Reloaded(ref=step.ref, workload=None, failed="no answer"), 9.0) == []
    assert gateway.handle(Tick(), 9.0) == [Append(ref="wish/ann/train", event=event)]
    assert gateway.handle(stored(6, "wish/ann/train"), 9.0) == []
    assert gateway.handle(Tick(), 9.0) == []
    assert gateway.in_flight == 0


def test_a_gateway_that_starts_late_finds_the_cancels_that_were_overtaken() -> None:
    gateway = fresh(caught_up=False)
    log(gateway, S, P, C, cancel_wish(3), evicted(job(), 4))
    (step,) = gateway.handle(CaughtUp(), 9.0)
    assert isinstance(step, Append)
    assert (step.ref, step.event.after) == ("wish/ann/train", 5)


# get and list


def view(state: str = "queued", **rest: object) -> WorkloadView:
    common = {
        "tenant": "ann",
        "id": "train",
        "queue": "default",
        "pods": 1,
        "submitted_at_s": 1.0,
        "changed_at_s": 1.0,
        "sequence": 1,
    }
    return WorkloadView(state=state, **(common | rest))  # type: ignore[arg-type]


def recorded(*events: WorkloadEvent, start: int = 1) -> tuple[RecordedEvent, ...]:
    return tuple(
        RecordedEvent(sequence=n, stored_at_s=float(n), event=e)
        for n, e in enumerate(events, start)
    )


def test_get_answers_from_the_view_while_the_workload_is_open() -> None:
    gateway = fresh()
    log(gateway, S, P)
    shown = view("placed", attempt=1, cluster="c1", changed_at_s=2.0, sequence=2)
    assert gateway.handle(ask("get", {"id": "train"}), 9.0) == say(
        GetReply(workload=shown, request=job())
    )


READ = [ReadStory(ref="r1", tenant="ann", id="train")]
STORY = recorded(S, P, C, succeeded(job(), 3))
SHOWN = view("succeeded", attempt=1, cluster="c1", changed_at_s=4.0, sequence=4)


def test_get_reads_the_story_from_the_log() -> None:
    gateway = fresh()
    assert gateway.handle(ask("get", {"id": "train", "story": True}), 9.0) == READ
    assert gateway.handle(StoryRead(ref="r1", events=STORY), 9.0) == say(
        GetReply(workload=SHOWN, request=job(), story=STORY)
    )


@pytest.mark.parametrize("removed", [3, 2, 1])  # the newest first, the ending stays
def test_get_reads_the_story_from_the_archive_when_some_of_it_is_removed(removed: int) -> None:
    gateway = fresh()
    gateway.handle(ask("get", {"id": "train", "story": True}), 9.0)
    # The archive also holds an earlier life of the same id.
    earlier = recorded(submitted(job(), at_s=0.5), cancelled(job(), 1))
    later = tuple(
        msgspec.structs.replace(r, sequence=r.sequence + 10, event=moved(r.event)) for r in STORY
    )
    left = later[: 3 - removed] + later[-1:]
    read = StoryRead(ref="r1", events=left, archived=earlier + later)
    shown = msgspec.structs.replace(SHOWN, sequence=14)
    assert gateway.handle(read, 9.0) == say(GetReply(workload=shown, request=job(), story=later))


def moved(event: WorkloadEvent) -> WorkloadEvent:
    return msgspec.structs.replace(event, after=event.after + 10 if event.after else 0)


def test_get_shows_the_tombstone_while_the_archive_knows_nothing_of_it() -> None:
    gateway = fresh()
    gateway.handle(ask("get", {"id": "train"}), 9.0)
    tombstone = recorded(succeeded(job(), 3), start=4)
    shown = msgspec.structs.replace(SHOWN, queue="", pods=0)
    assert gateway.handle(StoryRead(ref="r1", events=tombstone), 9.0) == say(
        GetReply(workload=shown)
    )


def test_a_void_event_is_shown_as_one_and_has_no_effect() -> None:
    gateway = fresh()
    gateway.handle(ask("get", {"id": "train", "story": True}), 9.0)
    events = recorded(S, P, placed(job(), 1, cluster="c2"))
    void = (*events[:2], msgspec.structs.replace(events[2], void=True))
    shown = view("placed", attempt=1, cluster="c1", changed_at_s=2.0, sequence=3)
    assert gateway.handle(StoryRead(ref="r1", events=events), 9.0) == say(
        GetReply(workload=shown, request=job(), story=void)
    )


FROZEN = "this version cannot read its event 3 (a newer tag)"


def frozen_gateway() -> Gateway:
    gateway = fresh()
    log(gateway, S, P)
    news = UnreadableEvent(tenant="ann", id="train", sequence=3, why="a newer tag")
    assert gateway.handle(news, 3.0) == []
    return gateway


def test_a_workload_with_an_event_of_a_newer_version_is_frozen_and_get_says_so() -> None:
    gateway = frozen_gateway()
    log(gateway, claimed(job(), 3), start=4)  # not taken: what came before is unknown
    shown = view(
        "placed", attempt=1, cluster="c1", changed_at_s=2.0, sequence=2, reason=f"frozen: {FROZEN}"
    )
    assert gateway.handle(ask("get", {"id": "train"}), 9.0) == say(
        GetReply(workload=shown, request=job())
    )


def test_nothing_is_done_to_a_frozen_workload_and_its_id_stays_used() -> None:
    gateway = frozen_gateway()
    assert gateway.handle(CANCEL, 9.0) == say(
        Refusal(
            code="unavailable",
            field="id",
            value='"train"',
            expected=f"a workload that is not frozen; {FROZEN}",
        )
    )
    gateway = fresh(caught_up=False)
    gateway.handle(ask("submit", job()), 9.0)
    gateway.handle(Answered(ref="r1", outcome=Refused(3)), 9.0)
    gateway.handle(UnreadableEvent(tenant="ann", id="train", sequence=3, why="a newer tag"), 9.0)
    assert gateway.handle(Reloaded(ref="r1", workload=None, failed="unreadable"), 9.0) == say(
        Refusal(
            code="conflict",
            field="id",
            value='"train"',
            expected="an id that was not used before; "
            f"this one belongs to a workload that is frozen: {FROZEN}",
        )
    )


def test_event_ahead_freezes_its_workload_until_the_ending() -> None:
    gateway = fresh()
    log(gateway, S)
    gateway.handle(Logged(event=claimed(job(), 2), sequence=3, stored_at_s=3.0), 9.0)
    assert gateway.view.frozen("ann", "train") == "events of it are missing from the log"
    ending = succeeded(job(), 3)
    gateway.handle(Logged(event=ending, sequence=4, stored_at_s=4.0), 9.0)
    assert gateway.view.frozen("ann", "train") == ""
    assert gateway.view.open_of("ann") == 0


def test_of_many_that_have_ended_the_oldest_are_forgotten_and_read_when_asked_for() -> None:
    gateway = fresh(max_ended=1)
    for name, first in (("old", 1), ("young", 3)):
        log(gateway, submitted(job(name)), cancelled(job(name), first), start=first)
    assert gateway.handle(Tick(), 10.0) == []
    [told] = gateway.handle(ask("list", b""), 10.0)
    assert isinstance(told, Reply)
    assert isinstance(told.reply, ListReply)
    assert [each.id for each in told.reply.workloads] == ["young"]
    asked = gateway.handle(ask("get", GetRequest(id="old")), 11.0)
    assert asked == [ReadStory(ref="r1", tenant="ann", id="old")]


def test_a_log_that_was_replaced_is_forgotten() -> None:
    gateway = frozen_gateway()
    gateway.handle(LogReplaced(), 9.0)
    assert not gateway.caught_up
    assert (gateway.view.open_count, gateway.view.frozen_count) == (0, 0)


def test_list_is_put_off_until_the_log_has_been_read() -> None:
    gateway = fresh(caught_up=False)
    log(gateway, S)
    assert gateway.handle(ask("list", b""), 9.0) == say(
        Refusal(
            code="unavailable",
            field="",
            value="",
            expected="the log has not been read to its end yet",
            retry=True,
        )
    )
    gateway.handle(CaughtUp(), 9.0)
    assert gateway.handle(ask("list", b""), 9.0) == say(
        ListReply(workloads=(view(),), counts={"queued": 1})
    )
    assert gateway.handle(ask("list", b"", tenant="bob"), 9.0) == say(ListReply())


def test_a_long_list_breathes_and_goes_on_with_what_is_known_by_then() -> None:
    gateway = fresh()
    names = [f"j{number}" for number in range(200)]
    log(gateway, *(submitted(job(name)) for name in names))
    breathes: list[Instruction] = [Breathe(ref="r1", asker="ann")]
    assert gateway.handle(ask("list", b'{"limit": 1000}'), 9.0) == breathes

    # Meanwhile one that was shown ends, one that comes last ends, and a new one comes.
    for name in ("j199", "j0"):
        sequence = names.index(name) + 1
        end_of_it = cancelled(job(name), sequence)
        gateway.handle(Logged(event=end_of_it, sequence=300 + sequence, stored_at_s=9.0), 9.0)
    new = submitted(job("new"))
    gateway.handle(Logged(event=new, sequence=600, stored_at_s=9.0), 9.0)
    stretches, told = 1, breathes
    while told == breathes:
        told = gateway.handle(Breathed(ref="r1"), 9.0)
        stretches += 1
    assert stretches == 3
    (end,) = told
    assert isinstance(end, Reply)
    assert isinstance(end.reply, ListReply)
    shown = {each.id: each.state for each in end.reply.workloads}
    assert list(shown) == names[::-1]
    assert (shown["j199"], shown["j0"], shown["j1"]) == ("queued", "cancelled", "queued")
    assert end.reply.counts == {"queued": 199, "cancelled": 2}


def test_a_long_list_that_is_given_up_is_over() -> None:
    gateway = fresh()
    log(gateway, *(submitted(job(f"j{number}")) for number in range(200)))
    gateway.handle(ask("list", b'{"limit": 1000}'), 9.0)
    assert gateway.handle(Abandoned(ref="r1"), 9.1) == say(UNCERTAIN)
    assert gateway.handle(Breathed(ref="r1"), 9.2) == []
    assert gateway.in_flight == 0


# operators


@pytest.mark.parametrize(
    ("verb", "body", "fact", "note"),
    [
        (
            "cordon",
            {"cluster": "eu west.1", "node": "n1", "reason": "fan"},
            Cordon(
                cluster="eu west.1", node="n1", cordoned=True, reason="fan", set_by=BY, set_at_s=9.0
            ),
            "nothing new is placed there; what runs there goes on",
        ),
        (
            "uncordon",
            {"cluster": "c1"},
            Cordon(cluster="c1", cordoned=False, set_by=BY, set_at_s=9.0),
            "",
        ),
        (
            "cordon",
            {"cluster": "c1", "node": "n1", "gpu": 3, "who": "eve"},
            GpuCordon(cluster="c1", node="n1", gpu=3, cordoned=True, set_by="eve", set_at_s=9.0),
            "new pods stay away from it; what runs there continues",
        ),
        (
            "uncordon",
            {"cluster": "c1", "node": "n1", "gpu": 0, "reason": "replaced"},
            GpuCordon(
                cluster="c1",
                node="n1",
                gpu=0,
                cordoned=False,
                reason="replaced",
                set_by=BY,
                set_at_s=9.0,
            ),
            "",
        ),
        (
            "lost",
            {"cluster": "c1", "reason": "flood"},
            ClusterLost(cluster="c1", lost=True, reason="flood", set_by=BY, set_at_s=9.0),
            "what was claimed there is placed anew",
        ),
        (
            "found",
            {"cluster": "c1", "reason": "dry"},
            ClusterLost(cluster="c1", lost=False, reason="dry", set_by=BY, set_at_s=9.0),
            "",
        ),
        (
            "queue",
            {"queue": "research", "weight": 2, "set_by": "eve"},
            QueueSetting(queue="research", weight=2.0, set_by="eve", set_at_s=9.0),
            "",
        ),
        (
            "queue",
            {"queue": "k", "via": "worker", "guarantee_gpu_milli": 5, "max_running_jobs": 1},
            QueueSetting(
                queue="k",
                via="worker",
                guarantee_gpu_milli=5,
                max_running_jobs=1,
                set_by=BY,
                set_at_s=9.0,
            ),
            (
                "Kueue governs this queue, so that these limit nothing: "
                "guarantee_gpu_milli, max_running_jobs"
            ),
        ),
        (
            "queue",
            {"queue": "research", "capability_gpu_milli": 8000, "held": True},
            QueueSetting(
                queue="research", capability_gpu_milli=8000, held=True, set_by=BY, set_at_s=9.0
            ),
            "",
        ),
    ],
)
def test_an_operators_order_is_confirmed_when_it_is_stored(
    verb: str, body: object, fact: Cordon | GpuCordon | ClusterLost | QueueSetting, note: str
) -> None:
    gateway = fresh()
    asked = ask(verb, body, tenant=None)
    assert gateway.handle(asked, 9.0) == [PutControl(ref="r1", fact=fact)]
    assert gateway.handle(stored(3), 9.0) == say(OperatorReply(sequence=3, note=note))
    gateway.handle(asked, 9.0)
    told = msgspec.structs.replace(UNCERTAIN, expected=f"{AGAIN} (?)")
    assert gateway.handle(Answered(ref="r1", outcome=Unknown("?")), 9.0) == say(told)


def test_verbs_of_operators_are_no_tenants() -> None:
    (step,) = fresh().handle(ask("cordon", {"cluster": "c1"}, tenant="ann"), 9.0)
    assert isinstance(step, Reply)
    assert isinstance(step.reply, Refusal)
    (step,) = fresh().handle(ask("submit", job(), tenant=None), 9.0)
    assert isinstance(step, Reply)
    assert isinstance(step.reply, Refusal)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["submit", "cancel", "reprioritize", "get", "list", "cordon", "queue", "x"]),
    st.none() | st.text(max_size=8),
    st.binary(max_size=60) | st.sampled_from([b'{"id":"a"}', b'{"cluster":"c"}', b"{}"]),
)
def test_any_request_leads_to_exactly_one_step(verb: str, tenant: str | None, data: bytes) -> None:
    gateway = fresh()
    (step,) = gateway.handle(ask(verb, data, tenant=tenant), 1.0)
    if isinstance(step, Reply):
        assert gateway.in_flight == 0
        assert msgspec.json.encode(step.reply)
    else:
        assert gateway.handle(Abandoned(ref="r1"), 2.0) == say(UNCERTAIN)


def test_a_node_that_fails_everybodys_jobs_is_cordoned_once_all_is_known() -> None:
    gateway = Gateway(by=BY)
    for number, name in enumerate("abc"):
        request, first = job(name), 4 * number + 1
        lost = msgspec.structs.replace(evicted(request, first + 2), fault="gpu_lost", node="n1")
        story = submitted(request), placed(request, first), claimed(request, first + 1), lost
        log(gateway, *story, start=first)
    gateway.handle(CaughtUp(), 10.0)
    assert gateway.handle(Tick(), 10.0) == []  # it may be cordoned: the settings are not read yet
    gateway.handle(QueuesKnown(), 10.0)
    [put] = gateway.handle(Tick(), 11.0)
    assert isinstance(put, PutControl)
    assert isinstance(put.fact, Cordon)
    assert (put.fact.cluster, put.fact.node, put.fact.cordoned) == ("c1", "n1", True)
    assert "ann/a gpu_lost" in put.fact.reason
    assert gateway.handle(Tick(), 12.0) == []  # asked for already
    assert gateway.handle(stored(13, put.ref), 12.0) == []
    gateway.handle(CordonSet(cordon=put.fact), 12.0)
    assert gateway.handle(Tick(), 13.0) == []
