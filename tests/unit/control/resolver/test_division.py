"""Jobs that are divided over clusters: parts, the two phases of a gang, and how all of it ends."""

from msgspec.structs import replace

from berthmaster.cli.audit.core import Auditor
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.core.resolver import LOOK_AGAIN_S, Resolver
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Committed,
    Divide,
    Evicted,
    Failed,
    Held,
    JobRequest,
    MoveRequested,
    PartPlace,
    PodSet,
    Reprioritized,
    Running,
    WorkloadEvent,
)
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

GANG = JobRequest(
    id="train",
    pod_sets=(PodSet(count=5, gpus=8, cpu_milli=1000, memory_mib=1024),),
    divide=Divide(),
    priority=3,
)


def fleet(**nodes: int) -> World:
    """Clusters with so many nodes of eight GPUs."""
    world = World()
    for cluster, number in nodes.items():
        world.fact(profile(cluster), alive(cluster))
        world.fact(*(node(cluster, f"n{at}") for at in range(number)))
    return world


def parts_of(world: World, name: Key) -> list[Key]:
    return [key(TENANT, part.id) for part in world.workloads[name].parts]


def end(world: World) -> list[WorkloadEvent]:
    """The resolver's own endings, until there are none."""
    told: list[WorkloadEvent] = []
    while appends := world.resolver.endings(world.now_s):
        for append in appends:
            world.append(append.event)
            told.append(append.event)
        for append in appends:
            world.resolver.on_appended(append.ref, Stored(world.sequence))
    return told


def begun(world: World, request: JobRequest = GANG) -> tuple[Key, list[Key]]:
    name = world.submit(request)
    world.settle()
    return name, parts_of(world, name)


def audited(world: World) -> None:
    auditor = Auditor()
    log = [(sequence, event) for sequence, _, event in world.events] + list(world.decisions)
    for sequence, entry in sorted(log, key=lambda each: each[0]):
        if isinstance(entry, WorkloadEvent):
            auditor.on_event(entry, sequence, 0.0)
        else:
            auditor.on_decision(entry, sequence)
    assert auditor.report().findings == ()
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_a_gang_goes_to_as_few_clusters_as_have_room_and_starts_when_all_are_claimed() -> None:
    world = fleet(c1=2, c2=3, c3=1)
    name, parts = begun(world)
    assert world.workloads[name].parts == (
        PartPlace(id="train--1-0", cluster="c1", pods=2),
        PartPlace(id="train--1-1", cluster="c2", pods=3),
    )
    assert [world.placed_on(part) for part in parts] == ["c1", "c2"]
    request = world.workloads[parts[1]].request
    assert request is not None
    assert request.part is not None
    assert (request.part.number, request.part.pods, request.priority) == (1, (2, 3), 3)
    world.claim(parts[0])
    assert world.settle() == []  # one is not enough
    assert world.workloads[parts[0]].held_back
    world.claim(parts[1])
    [plan] = world.settle()
    assert [each.parts for each in plan.decision.commits] == [("train--1-0", "train--1-1")]
    assert not any(world.workloads[part].held_back for part in parts)
    for part in parts:
        world.run(part)
    world.succeed(parts[1])
    assert end(world) == []  # the other one works
    world.succeed(parts[0])
    end(world)
    assert world.workloads[name].state is State.SUCCEEDED
    audited(world)


def limited(**resources: QueueAmounts) -> tuple[World, Key, Key]:
    """A gang that takes all that its queue may have, divided just now; another of the queue waits,
    for which there is room."""
    world = fleet(c1=2, c2=3, c3=1)
    world.fact(profile("h"), alive("h"), node("h", gpus=4, model="H100"))  # too few
    world.control(QueueSetting(queue="default", resources=resources))
    gang = world.submit(GANG)
    other = world.submit(job("other", gpus=8, priority=GANG.priority))
    plan = world.decide()
    assert plan is not None
    assert [each.id for each in plan.decision.divisions] == ["train"]
    assert not world.placed_on(other)
    return world, gang, other


def test_nobody_takes_of_its_queue_what_a_gang_needs_between_division_and_placement() -> None:
    """The other one was submitted before the parts."""
    world, gang, other = limited(gpu=QueueAmounts(capability=40_000))
    world.settle()
    assert [world.placed_on(part) for part in parts_of(world, gang)] == ["c1", "c2"]
    assert not world.placed_on(other)
    audited(world)


def test_who_waits_beside_a_division_is_looked_at_again_when_that_comes_to_nothing() -> None:
    """It did not fit beside what the gang was about to take of its queue, and then takes it."""
    world, gang, other = limited(**{"gpu/T4": QueueAmounts(capability=40_000)})
    world.append(Held(**world._head(gang), who="ada"))  # type: ignore[arg-type]
    world.settle()
    assert world.placed_on(other)
    audited(world)


def test_a_part_whose_commit_a_damaged_log_has_lost_is_told_again_to_start() -> None:
    world = fleet(c1=2, c2=3, c3=1)
    _, parts = begun(world)
    for part in parts:
        world.claim(part)
    world.settle()
    left = world.resolver.know.open[parts[0]]
    left.committed = False  # as the log tells it that has lost this one event
    [plan] = world.settle()
    assert [each.parts for each in plan.decision.commits] == [("train--1-0",)]
    assert [(type(each), each.id) for each in plan.events] == [(Committed, "train--1-0")]


def test_a_job_that_comes_again_takes_no_id_of_parts_that_were_carried() -> None:
    """A damaged log has lost job and parts; one part is carried into the new one, and ends before
    the job is submitted once more. Its id is used up: the log would refuse a division that takes
    it."""
    was = fleet(c1=2, c2=3)
    _, (_, part) = begun(was)
    lost = was.workloads[part]
    assert lost.request is not None
    world = fleet(c1=2, c2=3)
    work = CarriedWorkload(
        state=State.CLAIMED,
        request=lost.request,
        digest=lost.digest,
        attempt=1,
        cluster=lost.cluster,
        pods=lost.pods,
        decision=1,
        claimed_at_s=world.now_s,
        executor="executor/c2",
        committed=True,
    )
    head = {"tenant": TENANT, "id": lost.id, "after": 0, "at_s": world.now_s, "by": "berth recover"}
    back = Carried(**head, workload=work, cluster=lost.cluster)  # type: ignore[arg-type]
    world.append(back)
    world.run(part)
    world.succeed(part)
    lost_word = CancelRequested(
        tenant=TENANT, id="train", after=1, at_s=world.now_s, by="gateway", cluster="c2"
    )
    world.resolver.on_event(lost_word, world.sequence + 1, world.now_s)  # of the life that is lost
    world.sequence += 1
    assert dict(snapshot_of(world.resolver.know).divisions) == {key(TENANT, "train"): 1}
    name = world.submit(GANG)
    world.settle()
    assert [each.id for each in world.workloads[name].parts] == ["train--2-0", "train--2-1"]
    assert world.workloads[name].state is State.DIVIDED


def test_whoever_runs_before_all_are_claimed_is_not_believed() -> None:
    world = fleet(c1=2, c2=3)
    _, parts = begun(world)
    world.claim(parts[0])
    pods = world.workloads[parts[0]].pods
    world.append(Running(**world._attempt(parts[0]), pods=pods))  # type: ignore[arg-type]
    assert world.workloads[parts[0]].state is State.CLAIMED


def test_a_clock_that_is_ahead_ends_no_gang_before_the_server_s_time_says_so() -> None:
    world = fleet(c1=2, c2=3)
    name = world.submit(GANG)
    world.decide()
    parts = parts_of(world, name)
    assert {world.workloads[part].state for part in parts} == {State.QUEUED}
    ahead_s = 300.0
    assert world.resolver.decide(world.now_s + ahead_s) is None
    assert world.resolver.endings(world.now_s + ahead_s) == []
    assert world.resolver.wake_at_s() == world.now_s + ahead_s + LOOK_AGAIN_S
    world.now_s += world.policy.gather_s
    world.fact(*(alive(each) for each in ("c1", "c2")))
    told = [append.event for append in world.resolver.endings(world.now_s + ahead_s)]
    assert [key(event.tenant, event.id) for event in told] == parts
    assert all(isinstance(event, Cancelled) for event in told)


def test_a_gang_that_is_not_claimed_in_time_is_withdrawn_as_a_whole_and_keeps_its_age() -> None:
    world = fleet(c1=2, c2=3)
    name, parts = begun(world)
    submitted_s = world.workloads[name].submitted_at_s
    world.claim(parts[0])
    world.now_s += 12  # nobody claims the other
    world.fact(*(alive(each) for each in ("c1", "c2")))
    world.settle()
    assert [world.workloads[part].state for part in parts] == [State.CLAIMED, State.QUEUED]
    assert world.workloads[parts[0]].leaving == (
        "part train--1-1 has no place any more: not claimed in time"
    )
    end(world)
    world.append(
        Evicted(
            **world._attempt(parts[0]),  # type: ignore[arg-type]
            reason=world.workloads[parts[0]].leaving,
            blameless=True,
        )
    )
    end(world)
    job = world.workloads[name]
    assert (job.state, job.evictions, job.submitted_at_s) == (State.QUEUED, 0, submitted_s)
    assert all(world.workloads[part].state is State.CANCELLED for part in parts)
    world.now_s += 40  # whoever did not claim is tried again
    world.fact(*(alive(each) for each in ("c1", "c2")))
    world.settle()
    assert [each.id for each in world.workloads[name].parts] == ["train--2-0", "train--2-1"]
    audited(world)


def test_one_part_that_fails_ends_the_others_and_the_job_by_its_rules_for_retries() -> None:
    for retries, state in ((0, State.FAILED), (1, State.QUEUED)):
        world = fleet(c1=2, c2=3)
        name, parts = begun(world, replace(GANG, retries=retries))
        for part in parts:
            world.claim(part)
        world.settle()
        for part in parts:
            world.run(part)
        fields = world._attempt(parts[0]) | world._last(parts[0])
        world.append(Failed(**fields, reason="exit", exit_code=3, fault="exit"))  # type: ignore[arg-type]
        world.settle()
        assert world.workloads[parts[1]].leaving == "part train--1-0 failed: exit"
        world.append(
            Evicted(**world._attempt(parts[1]), reason="it goes", blameless=True)  # type: ignore[arg-type]
        )
        end(world)
        job = world.workloads[name]
        assert (job.state, job.reason, job.failures) == (
            state,
            "part train--1-0: exit",
            int(retries),
        )
        audited(world)


def test_a_divided_job_is_one_of_those_that_its_queue_may_run() -> None:
    world = fleet(c1=1, c2=1, c3=1, c4=1)
    setting = QueueSetting(queue="default", max_running_jobs=2)
    world.control(setting)
    other = world.start(job("other", queue="default", gpus=1))
    _, parts = begun(world, replace(GANG, pod_sets=(replace(GANG.pod_sets[0], count=3),)))
    assert len({world.placed_on(part) for part in parts} - {""}) == 3
    ledger = world.resolver.know.derived.ledger
    assert ledger.running["default"] == 2
    late = world.submit(job("late", gpus=1))
    world.settle()
    told = world.why(TENANT, "late", world.now_s)
    assert isinstance(told, WhyReply)
    assert told.summary == "waits: its queue runs the 2 jobs that it may"
    told = world.why(TENANT, None, world.now_s)
    assert isinstance(told, WhyReply)
    [account] = told.accounts
    assert (account.running, account.max_running_jobs, account.waiting) == (2, 2, 1)
    for part in parts:
        world.claim(part)
    world.settle()
    for part in parts:
        world.run(part)
        world.succeed(part)
    assert world.settle() == []  # its parts have ended, and it not yet
    end(world)
    world.settle()
    assert world.placed_on(late)
    assert ledger.running["default"] == 2
    world.succeed(other)
    world.control(replace(setting, max_running_jobs=0))
    assert ledger.running["default"] == 1
    audited(world)


def test_parts_take_their_places_whatever_else_their_queue_runs_by_then() -> None:
    world = fleet(c1=2, c2=3)
    world.control(QueueSetting(queue="default", max_running_jobs=1))
    world.submit(GANG)
    world.decide()  # it is divided; its parts have no places yet
    first = world.submit(job("first", gpus=1, priority=9))
    world.fact(node("c1", "n9"))
    world.settle()
    assert not world.placed_on(first)
    parts = parts_of(world, key(TENANT, "train"))
    assert [world.placed_on(part) for part in parts] == ["c1", "c2"]
    # Nor does it matter to a part that is placed anew that fewer may run now.
    world.control(QueueSetting(queue="default", max_running_jobs=0))
    world.claim(parts[0])
    assert not world.workloads[parts[0]].leaving


def test_cancel_and_hold_act_on_all_parts() -> None:
    for wish, state in ((CancelRequested, State.CANCELLED), (Held, State.QUEUED)):
        world = fleet(c1=2, c2=3)
        name, parts = begun(world)
        world.claim(parts[0])
        fields = {"cluster": ""} if wish is CancelRequested else {"who": "tenant a"}
        world.append(wish(**world._head(name), **fields))  # type: ignore[arg-type]
        world.settle()
        assert world.workloads[parts[0]].leaving
        assert not world.workloads[parts[1]].live
        world.append(
            Evicted(**world._attempt(parts[0]), reason="it goes", blameless=True)  # type: ignore[arg-type]
        )
        end(world)
        assert world.workloads[name].state is state
        assert world.settle() == []  # what is held does not begin again
        audited(world)


def test_pods_that_need_no_others_start_as_they_come_and_wait_again_by_themselves() -> None:
    world = fleet(c1=2, c2=3, c3=3)
    free = replace(GANG, divide=Divide(by="weight", gang=False, min_part=1))
    name, parts = begun(world, free)
    assert sorted(part.pods for part in world.workloads[name].parts) == [1, 2, 2]
    world.claim(parts[0])
    assert world.settle() == []  # nothing to commit
    world.run(parts[0])
    world.evict(parts[0])
    world.settle()
    assert world.workloads[parts[0]].attempt == 2  # elsewhere or there
    for part in parts:
        world.claim(part)
        world.run(part)
        world.succeed(part)
    end(world)
    assert world.workloads[name].state is State.SUCCEEDED
    audited(world)


def test_one_part_that_needs_no_others_moves_by_itself_and_no_other_stops() -> None:
    world = fleet(c1=2, c2=3, c3=3)
    free = replace(GANG, divide=Divide(by="weight", gang=False, min_part=1))
    name, parts = begun(world, free)
    for part in parts:
        world.claim(part)
        world.run(part)
    work = world.workloads[parts[0]]
    to = next(other for other in ("c2", "c3") if other != work.cluster)
    world.append(
        MoveRequested(
            tenant=work.tenant,
            id=work.id,
            after=work.sequence,
            at_s=0.0,
            by="gateway/1",
            cluster=work.cluster,
            attempt=work.attempt,
            how="move",
            who="tenant t",
            to=to,
        )
    )
    orders = [order for plan in world.settle() for order in plan.decision.moves]
    assert [(order.id, order.to) for order in orders] == [(work.id, to)]
    world.evict(parts[0])
    world.settle()
    assert (world.placed_on(parts[0]), world.workloads[parts[0]].attempt) == (to, 2)
    assert world.workloads[name].state is State.DIVIDED
    assert not any(world.workloads[part].leaving for part in parts)
    audited(world)


def passes(world: World, counter: int) -> None:
    world.now_s += 100.0
    world.fact(*(alive(cluster, counter=counter) for cluster in ("c1", "c2", "c3")))


def ran(guarantee_gpus: int = 0) -> tuple[World, Key, Key]:
    """A gang runs, and a smaller job for longer; one with a guarantee waits. The gang, the
    other job."""
    world = fleet(c1=2, c2=3, c3=1)
    world.control(QueueSetting(queue="default", guarantee_gpu_milli=guarantee_gpus * 1000))
    world.control(QueueSetting(queue="mine", guarantee_gpu_milli=8000))
    other = world.start(job("other", queue="lent", gpus=8))
    passes(world, 2)
    name, parts = begun(world)
    for part in parts:
        world.claim(part)
    world.settle()
    for part in parts:
        world.run(part)
    passes(world, 3)
    world.submit(job("due", queue="mine", gpus=8))
    return world, name, other


def test_a_part_that_would_make_room_costs_what_all_of_its_gang_lose() -> None:
    world, name, other = ran()
    [plan] = world.settle()
    # By itself a part of two pods has lost less than the other job, which began earlier.
    assert [order.id for order in plan.decision.evictions] == [world.workloads[other].id]
    assert not any(world.workloads[part].leaving for part in parts_of(world, name))
    audited(world)


def test_a_queue_is_not_taken_below_its_guarantee_by_the_rest_of_a_gang() -> None:
    world, name, other = ran(guarantee_gpus=24)
    world.control(QueueSetting(queue="lent", guarantee_gpu_milli=8000))
    world.settle()
    # One part alone would leave it 24 GPUs; with it all 40 go.
    assert not any(world.workloads[part].leaving for part in parts_of(world, name))
    assert not world.workloads[other].leaving


def test_weights_are_kept_and_the_least_part_too() -> None:
    world = fleet(c1=4, c2=4, c3=4)
    by = Divide(by="weight", weights={"c1": 3, "c2": 1})
    name, _ = begun(world, replace(GANG, divide=by))
    assert [(p.cluster, p.pods) for p in world.workloads[name].parts] == [("c1", 4), ("c2", 1)]
    world = fleet(c1=4, c2=4)
    name, _ = begun(world, replace(GANG, divide=Divide(min_part=2)))
    assert sorted(p.pods for p in world.workloads[name].parts) == [2, 3]
    world = fleet(c1=4, c2=4)
    name, parts = begun(world, replace(GANG, divide=Divide(min_part=3)))  # 3 + 2 is one too few
    assert (world.workloads[name].state, parts) == (State.QUEUED, [])


def test_what_fits_in_one_cluster_stays_there_and_nothing_is_divided_that_does_not_fit() -> None:
    world = fleet(c1=5, c2=3)
    name, parts = begun(world)
    assert (world.placed_on(name), parts) == ("c1", [])
    world = fleet(c1=2, c2=2)
    name, parts = begun(world)
    assert (world.workloads[name].state, parts) == (State.QUEUED, [])


def test_a_commit_and_a_lost_part_do_not_both_happen() -> None:
    world = fleet(c1=2, c2=3)
    name, parts = begun(world)
    for part in parts:
        world.claim(part)
    gone = Evicted(**world._attempt(parts[1]), reason="node died")  # type: ignore[arg-type]
    world.decide(before_storing=gone)
    world.settle()
    assert world.workloads[parts[0]].held_back
    assert world.workloads[parts[0]].leaving == "part train--1-1 has no place any more: node died"
    assert not world.workloads[name].committed


def test_a_decider_that_begins_from_a_snapshot_decides_the_same() -> None:
    world = fleet(c1=2, c2=3)
    name, parts = begun(world)
    for part in parts:
        world.claim(part)
    world.settle()
    world.run(parts[0])
    world.succeed(parts[0])
    other = Resolver("all", "resolver/other", world.policy)
    restore(other.know, snapshot_of(world.resolver.know))
    world.resolver = other
    world.append(Reprioritized(**world._head(name), priority=1))  # type: ignore[arg-type]
    world.run(parts[1])
    world.succeed(parts[1])
    end(world)
    assert world.workloads[name].state is State.SUCCEEDED


def test_parts_of_a_job_that_is_over_are_ended() -> None:
    world = fleet(c1=2, c2=3)
    name, parts = begun(world)
    world.claim(parts[0])
    fields = world._head(name) | world._last(name) | {"attempt": 1}
    world.append(Failed(**fields, reason="a person says so"))  # type: ignore[arg-type]
    world.settle()
    assert world.workloads[parts[0]].leaving == "the job that it is a part of is over"
    assert [each.id for each in end(world)] == ["train--1-1"]
