"""Stories of queues: whose turn it is, who borrows, who is kept out and when."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from berthmaster.lib.messages.workload import TRIAL_PRIORITY, JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def fleet(gpus: int = 8, model: str = "T4", policy: Policy | None = None) -> World:
    world = World(policy)
    world.fact(profile(), alive(), node(gpus=gpus, model=model))
    return world


def queue(name: str, **fields: Any) -> QueueSetting:
    return QueueSetting(queue=name, **fields)


def submit(world: World, queue: str, *names: str, **fields: Any) -> list[Key]:
    return [world.submit(job(name, queue=queue, **fields)) for name in names]


def order(world: World) -> list[str]:
    """Who is placed, first first, until nothing more is."""
    return [choice.id for plan in world.settle() for choice in plan.decision.placements]


def summary(world: World, name: str) -> str:
    reply = world.why(TENANT, name, world.now_s)
    return reply.summary  # type: ignore[union-attr]


def end(world: World, *names: Key) -> None:
    for name in names:
        if not world.workloads[name].claimed_at_s:
            world.claim(name)
        world.succeed(name)


# Order


def test_volcano_globals_round_robin_vector() -> None:
    """Two queues of equal rank with three bindings each are served in turn."""
    world = fleet()
    submit(world, "queue1", "rb1", "rb2", "rb3")
    submit(world, "queue2", "rb4", "rb5", "rb6")
    assert order(world) == ["rb1", "rb4", "rb2", "rb5", "rb3", "rb6"]


def test_volcano_globals_priority_vector() -> None:
    """The queue of higher priority first; inside a queue the job of higher priority."""
    world = fleet()
    world.control(queue("low", priority=1))
    world.control(queue("high", priority=5))
    submit(world, "low", "l1")
    submit(world, "high", "h1")
    submit(world, "high", "h2", priority=10)
    submit(world, "low", "l2", priority=100)
    assert order(world) == ["h2", "h1", "l2", "l1"]


def test_volcano_globals_capacity_vector() -> None:
    world = fleet()
    world.control(queue("q", resources={"cpu": QueueAmounts(capability=5000)}))
    submit(world, "q", "two", gpus=0, cpu_milli=2000)
    submit(world, "q", "four", gpus=0, cpu_milli=1000, count=4)
    submit(world, "q", "one-and-one", gpus=0, cpu_milli=1000, count=2)
    assert order(world) == ["two", "one-and-one"]
    assert summary(world, "four") == "waits: its queue is at its capability of 5 CPUs"


def test_a_weight_of_two_gets_twice_as_much() -> None:
    world = fleet(gpus=6)
    world.control(queue("light", weight=1.0))
    world.control(queue("heavy", weight=2.0))
    submit(world, "light", *(f"l{n}" for n in range(6)))
    submit(world, "heavy", *(f"h{n}" for n in range(6)))
    placed = order(world)
    assert (sum(n[0] == "l" for n in placed), sum(n[0] == "h" for n in placed)) == (2, 4)


def test_shares_are_of_the_scarcest_thing_that_a_queue_takes() -> None:
    """Of 16 T4s and 4 A100s, one A100 is as much as four T4s."""
    world = World()
    world.fact(profile("t"), alive("t"), node("t", gpus=16, model="T4"))
    world.fact(profile("a"), alive("a"), node("a", gpus=4, model="A100"))
    submit(world, "few", "a1", "a2", gpu_models=("A100",), cpu_milli=0, memory_mib=0)
    submit(
        world, "many", *(f"t{n}" for n in range(6)), gpu_models=("T4",), cpu_milli=0, memory_mib=0
    )
    assert order(world) == ["a1", "t0", "t1", "t2", "t3", "a2", "t4", "t5"]


def test_a_queue_below_what_it_deserves_goes_before_one_with_less_that_deserves_nothing() -> None:
    world = fleet(gpus=4)
    world.control(queue("own", deserved_gpu_milli=3000))
    submit(world, "other", "o1", "o2", "o3")
    submit(world, "own", "d1", "d2", "d3", "d4")
    assert order(world) == ["d1", "d2", "d3", "o1"]


# Guarantees


def test_who_is_within_a_guarantee_goes_before_a_queue_of_higher_priority() -> None:
    world = fleet(gpus=4)
    world.control(queue("vip", priority=100))
    world.control(queue("small", guarantee_gpu_milli=2000))
    submit(world, "vip", "v1", "v2", "v3", "v4")
    submit(world, "small", "s1", "s2", "s3")
    assert order(world) == ["s1", "s2", "v1", "v2"]


def test_a_guarantee_that_nobody_uses_is_lent_and_comes_back_when_what_runs_has_ended() -> None:
    world = fleet(gpus=4)
    world.control(queue("owner", guarantee_gpu_milli=3000))
    borrowed = submit(world, "other", "o1", "o2", "o3", "o4", "o5")
    assert order(world) == ["o1", "o2", "o3", "o4"]
    submit(world, "owner", "g1", "g2", "g3", "g4")
    assert order(world) == []  # nobody is stopped for it: that is preemption's business
    end(world, borrowed[0], borrowed[1])
    assert order(world) == ["g1", "g2"]
    end(world, borrowed[2], borrowed[3])
    assert order(world) == ["g3", "o5"]  # the fourth would be more than the guarantee


def test_what_a_guarantee_cannot_use_others_may_have() -> None:
    """The owner's job is too large for what is free: it does not keep others from it."""
    world = fleet(gpus=4, policy=Policy(reservations=0))
    world.control(queue("owner", guarantee_gpu_milli=8000))
    submit(world, "owner", "large", gpus=8)
    submit(world, "other", "o1")
    assert order(world) == ["o1"]


def test_a_guarantee_of_one_model_keeps_others_from_that_model_only() -> None:
    world = World()
    world.fact(profile("h"), alive("h"), node("h", gpus=2, model="H100"))
    world.control(queue("owner", resources={"gpu/H100": QueueAmounts(guarantee=2000)}))
    world.control(queue("vip", priority=9))
    submit(world, "vip", "v1", gpu_models=("H100",))
    submit(world, "owner", "g1", "g2", gpu_models=("H100",))
    assert order(world) == ["g1", "g2"]


def test_over_committed_guarantees_are_kept_by_queue_priority_as_far_as_there_is_room() -> None:
    world = fleet(gpus=4)
    world.control(queue("a", guarantee_gpu_milli=4000, priority=1))
    world.control(queue("b", guarantee_gpu_milli=4000, priority=2))
    submit(world, "a", "a1", "a2", "a3")
    submit(world, "b", "b1", "b2", "b3")
    assert order(world) == ["b1", "b2", "b3", "a1"]


# Limits


def test_a_model_of_which_a_queue_has_all_that_it_may_is_passed_by() -> None:
    world = World()
    world.fact(profile("t"), alive("t"), node("t", gpus=4, model="T4"))
    world.fact(profile("h"), alive("h"), node("h", gpus=4, model="H100"))
    limits = {"gpu/H100": QueueAmounts(capability=1000), "gpu/T4": QueueAmounts(capability=2000)}
    world.control(queue("q", resources=limits))
    names = submit(world, "q", *(f"j{n}" for n in range(5)))
    placed = order(world)
    assert len(placed) == 3
    by_cluster = sorted(world.placed_on(name) for name in names)
    assert by_cluster == ["", "", "h", "t", "t"]
    assert world.workloads[names[0]].request == job("j0", queue="q")  # as it was asked for
    end(world, next(name for name in names if world.placed_on(name) == "h"))
    assert len(order(world)) == 1


def test_who_waits_as_its_queue_may_have_no_more_of_a_model_hears_that() -> None:
    world = World()
    world.fact(profile("t"), alive("t"), node("t", gpus=4, model="T4"))
    world.fact(profile("h"), alive("h"), node("h", gpus=1, model="H100"))
    world.control(queue("q", resources={"gpu/T4": QueueAmounts(capability=1000)}))
    first, second, _ = submit(world, "q", "a", "b", "c")
    order(world)
    assert {world.placed_on(first), world.placed_on(second)} == {"h", "t"}
    reply = world.why(TENANT, "c", world.now_s)
    assert isinstance(reply, WhyReply)
    assert reply.filtered == {"h": "busy: no room now", "t": "its queue may have no more T4"}
    assert reply.summary == "waits: of 2 clusters: 1 busy, 1 its queue may have no more T4"
    dry = world.dry_run(TENANT, job("d", queue="q"), world.now_s)
    assert (dry.placed, dry.filtered) == (False, reply.filtered)


def test_so_many_jobs_of_a_queue_run_at_once_and_none_is_larger_than_it_may_be() -> None:
    world = fleet(gpus=8)
    world.control(queue("q", max_running_jobs=2, max_job_gpu_milli=2000))
    too_large = submit(world, "q", "large", gpus=3)
    jobs = submit(world, "q", "a", "b", "c")
    assert order(world) == ["a", "b"]
    assert summary(world, "large") == "waits: its queue takes no job of more than 2 GPUs"
    assert summary(world, "c") == "waits: its queue runs the 2 jobs that it may"
    end(world, jobs[0])
    assert order(world) == ["c"]
    world.control(queue("q", max_job_gpu_milli=3000))
    assert order(world) == ["large"]
    assert world.placed_on(too_large[0]) == "c1"


def test_where_a_clusters_kueue_governs_the_queue_our_amounts_limit_nothing() -> None:
    world = fleet(gpus=2)
    world.control(queue("q", capability_gpu_milli=0, via="worker"))
    assert world.resolver.know.derived.share("q") == world.resolver.know.derived.share(
        "q"
    )._replace(capability={}, guarantee={})


def test_a_setting_is_effective_at_once_and_a_held_queue_keeps_its_jobs() -> None:
    world = fleet(gpus=2)
    world.control(queue("q", held=True, guarantee_gpu_milli=2000))
    submit(world, "q", "mine")
    submit(world, "other", "o1", "o2")
    assert order(world) == ["o1", "o2"]  # a guarantee of a held queue is lent as well
    world.control(queue("q", capability_gpu_milli=0))
    assert order(world) == []
    world.control(queue("q"))
    world.fact(node(name="n2", gpus=1))
    assert order(world) == ["mine"]


# Absurd input


def test_priorities_at_the_limits_of_what_may_be_said() -> None:
    world = fleet(gpus=8)
    most = -(TRIAL_PRIORITY + 1)
    for name, priority in (("bottom", -most), ("top", most), ("middle", 0)):
        world.control(queue(name, priority=priority))
        submit(world, name, f"{name}-low", priority=-most)
        submit(world, name, f"{name}-high", priority=most)
    assert order(world) == [
        "top-high",
        "top-low",
        "middle-high",
        "middle-low",
        "bottom-high",
        "bottom-low",
    ]


def test_a_thousand_queues_are_served_in_turn_and_the_rest_waits_without_work() -> None:
    world = fleet(gpus=64)
    for number in range(1000):
        submit(world, f"q{number:03}", f"a{number}", f"b{number}")
    assert order(world) == [f"a{number}" for number in range(64)]
    know = world.resolver.know
    assert (
        sum(line.blocked_at == know.derived.growth for line in know.derived.lines.lines()) == 1000
    )


def test_ten_thousand_identical_jobs_are_one_line() -> None:
    world = fleet(gpus=8)
    names = submit(world, "q", *(f"j{number}" for number in range(10_000)))
    assert order(world) == [f"j{number}" for number in range(8)]
    assert len(world.resolver.know.derived.lines.lines()) == 1
    end(world, names[3])
    assert order(world) == ["j8"]


# The slow twin: no lines, no heaps, no memory; one look at all that wait for each job


COMMIT_LIMIT = 3


class Twin:
    """Who goes next on one node of GPUs, by the rules as they are written down."""

    def __init__(self, gpus: int, queues: dict[str, QueueSetting]) -> None:
        self.free = gpus * 1000
        self.total = gpus * 1000
        self.queues = queues
        self.waiting: list[JobRequest] = []
        self.running: list[JobRequest] = []

    def used(self, queue: str) -> int:
        return sum(r.pod_sets[0].gpus * 1000 for r in self.running if r.queue == queue)

    def setting(self, queue: str) -> QueueSetting:
        return self.queues.get(queue) or QueueSetting(queue=queue)

    def may(self, request: JobRequest) -> bool:
        setting, milli = self.setting(request.queue), request.pod_sets[0].gpus * 1000
        limit = setting.capability_gpu_milli
        if limit is not None and self.used(request.queue) + milli > limit:
            return False
        most = setting.max_running_jobs
        running = sum(each.queue == request.queue for each in self.running)
        return most is None or running < most

    def key(self, request: JobRequest, age: int) -> tuple[Any, ...]:
        setting, milli = self.setting(request.queue), request.pod_sets[0].gpus * 1000
        used = self.used(request.queue)
        guaranteed = used + milli <= (setting.guarantee_gpu_milli or 0)
        deserved = used + milli <= (setting.deserved_gpu_milli or 0)
        by = 0 if guaranteed else 1 if deserved else 2
        share = used / self.total / setting.weight
        return (
            not guaranteed,
            -setting.priority,
            by,
            share,
            -setting.priority,
            -request.priority,
            age,
        )

    def settle(self) -> list[str]:
        """Commits, until one places nothing."""
        placed: list[str] = []
        while batch := self.commit():
            placed += batch
        return placed

    def commit(self) -> list[str]:
        """A queue stands where its first job stands, whether the job fits or not. The best queue's
        first job is placed, or gives way to the next: with all jobs of its size where it does not
        fit, alone where its queue may not run it."""
        placed: list[str] = []
        refused: set[str] = set()
        too_large: set[tuple[str, int]] = set()
        while len(placed) < COMMIT_LIMIT:
            heads: dict[str, tuple[Any, ...]] = {}
            aged = list(enumerate(self.waiting))
            for age, request in sorted(aged, key=lambda each: (-each[1].priority, each[0])):
                size = request.queue, request.pod_sets[0].gpus
                if request.queue in heads or request.id in refused or size in too_large:
                    continue
                heads[request.queue] = (*self.key(request, age), request)
            if not heads:
                break
            best = min(heads.values(), key=lambda head: head[:-1])[-1]
            milli = best.pod_sets[0].gpus * 1000
            if not self.may(best):
                refused.add(best.id)
            elif milli > self.free:
                too_large.add((best.queue, best.pod_sets[0].gpus))
            else:
                self.waiting.remove(best)
                self.running.append(best)
                self.free -= milli
                placed.append(best.id)
        return placed

    def end(self, name: str) -> None:
        [gone] = [request for request in self.running if request.id == name]
        self.running.remove(gone)
        self.free += gone.pod_sets[0].gpus * 1000


amounts = st.one_of(st.none(), st.integers(0, 6).map(lambda n: n * 1000))
settings_of = st.fixed_dictionaries(
    {
        "priority": st.integers(-1, 1),
        "weight": st.sampled_from([0.5, 1.0, 2.0]),
        "guarantee_gpu_milli": amounts,
        "deserved_gpu_milli": amounts,
        "capability_gpu_milli": amounts,
        "max_running_jobs": st.one_of(st.none(), st.integers(0, 3)),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 4), st.integers(-1, 1)),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(queues=st.dictionaries(st.sampled_from("abc"), settings_of), steps=steps)
@example(  # c's first job does not fit and would borrow; the next would not
    queues={"c": {"deserved_gpu_milli": 5000}},
    steps=[("a", 1, 0), ("a", 1, 0), ("c", 2, 0), ("c", 4, 0), ("c", 3, 0), ("a", 3, 0), 0],
)
def test_lines_and_heaps_decide_what_one_look_at_all_would(
    queues: dict[str, dict[str, Any]], steps: list[Any]
) -> None:
    """Capability is never exceeded, queues go by the rights of their first jobs, and nobody waits
    while room and right are there: the twin is these rules."""
    told = {name: queue(name, **fields) for name, fields in queues.items()}
    policy = Policy(reservations=0, commit_limit=COMMIT_LIMIT)
    world, twin = fleet(gpus=6, policy=policy), Twin(6, told)
    for setting in told.values():
        world.control(setting)
    for number, step in enumerate(steps):
        if isinstance(step, int):
            running = sorted(request.id for request in twin.running)
            if running:
                gone = running[step % len(running)]
                twin.end(gone)
                end(world, *(n for n in world.workloads if n.endswith(f"/{gone}")))
        else:
            name, gpus, priority = step
            # CPU and memory aside: shares are of GPUs alone.
            request = job(
                f"j{number}", queue=name, gpus=gpus, priority=priority, cpu_milli=0, memory_mib=0
            )
            twin.waiting.append(request)
            world.submit(request)
        assert order(world) == twin.settle()


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_changes_no_order(seed: int) -> None:
    world = fleet(gpus=3, policy=Policy(reservations=2))
    submit(world, "a", "a1", "a2")
    world.now_s += (-5000.0, 0.0, 5000.0)[seed]
    world.fact(alive(counter=2))
    submit(world, "b", "b1", "b2")
    assert order(world) == ["a1", "b1", "a2"]
