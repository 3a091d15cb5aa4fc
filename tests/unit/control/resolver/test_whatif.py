"""What if: answered on a copy, which decides as the original would, and the original stays."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers import whatif as module
from berthmaster.control.resolver.core.answers.suppositions import KINDS
from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import (
    AddedCluster,
    CordonRequest,
    Moved,
    Refusal,
    SubmitRequest,
    SupposedQueue,
    WhatifReply,
    WhatifRequest,
)
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.workload import JobRequest, Submitted
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, the_end_of


def fleet(**clusters: dict[str, Any]) -> World:
    world = World()
    for name, fields in clusters.items():
        world.fact(profile(name), alive(name), node(name, **fields))
    return world


def start(world: World, request: JobRequest) -> Key:
    name = world.submit(request)
    world.settle()
    world.claim(name)
    world.run(name)
    return name


def answer(
    world: World, *, tenant: str | None = None, budget: Budget | None = None, **asked: Any
) -> WhatifReply | Refusal:
    request = WhatifRequest(**asked)
    return the_end_of(world.whatif(tenant, request, world.now_s, budget or Budget()))


def ask(world: World, **asked: Any) -> WhatifReply:
    reply = answer(world, **asked)
    assert isinstance(reply, WhatifReply), reply
    return reply


def strict(request: JobRequest) -> SubmitRequest:
    return msgspec.json.decode(msgspec.json.encode(request), type=SubmitRequest)


def moved(name: str, was: str = "", would: str = "", gpus: float = 1.0) -> Moved:
    return Moved(tenant=TENANT, id=name, queue="default", gpus=gpus, was=was, would=would)


def test_a_submitted_job_is_told_its_place_and_who_it_pushes_back() -> None:
    world = fleet(c1={"gpus": 4})
    world.submit(job("next", gpus=4))  # about to be placed
    reply = ask(world, tenant=TENANT, submit=strict(job("urgent", gpus=4, priority=9)))
    assert reply.job is not None
    assert reply.job.choice is not None
    assert (reply.job.id, reply.job.state, reply.job.choice.cluster) == ("urgent", "placed", "c1")
    assert reply.waits == (moved("next", was="c1", gpus=4.0),)
    assert reply.counts == {"waits": 1}
    assert reply.summary == (
        "submit urgent: placed on c1 (n1): best of 1 that could take it, score 49.9; "
        "1 about to be placed would wait"
    )
    assert [w.id for w in world.resolver.know.open.values()] == ["next"]  # nobody submitted it


def test_a_submitted_job_that_would_wait_is_told_why_and_what_would_help() -> None:
    world = fleet(c1={"gpus": 4})
    start(world, job("runs", gpus=2))
    world.submit(job("waits", gpus=4))
    world.settle()
    reply = ask(world, tenant=TENANT, submit=strict(job("asks", gpus=3)))
    assert reply.job is not None
    assert (reply.job.summary, reply.job.position) == ("waits: of 1 clusters: 1 busy", 2)
    assert reply.job.hints == ("fewer GPUs: 2 a pod would fit now, on c1",)
    assert reply.counts == {}


def test_whatif_cordon_names_alternatives() -> None:
    world = fleet(c1={"gpus": 4}, c2={"gpus": 2})
    start(world, job("two", gpus=2, clusters=("c1",)))
    start(world, job("one", clusters=("c1",)))
    world.submit(job("only-there", gpus=4, clusters=("c1",)))
    world.submit(job("large", gpus=4))
    world.settle()
    reply = ask(world, cordon=CordonRequest(cluster="c1"))
    assert reply.change == "cordon c1"
    assert reply.elsewhere == (moved("two", "c1", gpus=2.0), moved("one", "c1"))
    assert reply.stranded == (moved("large", gpus=4.0), moved("only-there", gpus=4.0))
    assert reply.summary == (
        "cordon c1: 2 would go elsewhere if placed anew; 2 that wait would have no cluster left"
    )
    assert world.resolver.know.clusters.get("c1").cordoned is None


def test_a_cordoned_node_moves_its_pods_to_other_nodes_or_clusters() -> None:
    world = fleet(c1={"gpus": 4})
    start(world, job("there", gpus=4))
    world.fact(node("c1", "n2", gpus=4))
    reply = ask(world, cordon=CordonRequest(cluster="c1", node="n1"))
    assert reply.elsewhere == (moved("there", "c1", "c1", gpus=4.0),)
    assert ask(world, cordon=CordonRequest(cluster="c1", node="n2")).counts == {}


def test_an_uncordoned_cluster_takes_those_who_wait() -> None:
    world = fleet(c1={"gpus": 1}, c2={"gpus": 4})
    world.control(Cordon(cluster="c2", cordoned=True))
    start(world, job("runs"))
    for number in range(6):
        world.submit(job(f"j{number}"))
    world.settle()
    reply = ask(world, uncordon=CordonRequest(cluster="c2"))
    assert reply.placed == tuple(moved(f"j{n}", would="c2") for n in range(4))
    assert reply.summary == "uncordon c2: 4 that wait would be placed now"


def test_a_copy_of_a_cluster_is_empty_and_takes_those_who_wait() -> None:
    world = fleet(c1={"gpus": 2, "foreign_milli": (1000,)})
    start(world, job("runs"))
    for number in range(3):
        world.submit(job(f"j{number}"))
    world.settle()
    reply = ask(world, add_cluster=AddedCluster(name="c9", like="c1"))
    assert reply.change == "add c9, a copy of c1 (1 nodes, 2 GPUs)"
    assert reply.placed == (moved("j0", would="c9"), moved("j1", would="c9"))
    assert reply.elsewhere == (moved("runs", "c1", "c9"),)  # idle, where the other is not measured
    assert "c9" not in world.resolver.know.fleet.clusters


def test_nodes_of_a_known_model_look_like_the_fleets_and_of_another_like_usual_ones() -> None:
    world = fleet(c1={"gpus": 4, "model": "A100", "memory_mib": 40_960, "cpu_milli": 8000})
    start(world, job("runs", gpus=4))
    world.submit(job("a", gpus=4, gpu_models=("A100",), cpu_milli=8000))
    world.submit(job("h", gpus=8, gpu_models=("H200",), gpu_memory_mib=141_000))
    world.settle()
    known = ask(world, add_cluster=AddedCluster(name="new", model="A100", nodes=2))
    assert known.change == "add new, machines like n1 of c1 (2 nodes, 8 GPUs)"
    assert known.placed == (moved("a", would="new", gpus=4.0),)
    # With their memory too, of that model where a node has several.
    world.submit(job("fits", gpus=1, gpu_models=("A100",), gpu_memory_mib=40_960))
    world.submit(job("larger", gpus=1, gpu_models=("A100",), gpu_memory_mib=40_961))
    mixed = node("c1", "n1", gpus=5, model="T4", cpu_milli=8000, counter=2)
    a100 = world.resolver.know.fleet.node("c1", "n1")
    assert a100 is not None
    gpus = (*a100.gpus, mixed.gpus[4])
    world.fact(replace(mixed, gpus=gpus))
    new = ask(world, add_cluster=AddedCluster(name="new", model="A100", nodes=2))
    assert [each.id for each in new.placed] == ["a", "fits"]
    small = ask(world, add_cluster=AddedCluster(name="new", model="H200"))
    assert (small.change, small.placed) == ("add new, usual machines (1 nodes, 8 GPUs)", ())
    enough = AddedCluster(name="new", model="H200", gpu_memory_mib=144_384)
    assert ask(world, add_cluster=enough).placed == (moved("h", would="new", gpus=8.0),)


def test_a_queue_that_is_released_or_raised_lets_its_jobs_in() -> None:
    world = fleet(c1={"gpus": 2})
    world.control(QueueSetting(queue="default", held=True))
    world.submit(job("a", gpus=2))
    world.settle()
    reply = ask(world, queue=SupposedQueue(queue="default"))
    assert (reply.change, reply.placed) == (
        "change queue default",
        (moved("a", would="c1", gpus=2.0),),
    )
    none = ask(world, queue=SupposedQueue(queue="default", capability_gpu_milli=1000))
    assert none.summary == "change queue default: nothing would move"
    assert world.resolver.know.queues["default"].held


def test_a_tenant_is_told_its_own_and_how_many_others() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, job("runs"))
    world.submit(job("mine"))
    request = job("theirs")
    world.append(
        Submitted(
            tenant="other", id="theirs", after=0, at_s=0.0, by="t", request=request, digest="d"
        )
    )
    world.settle()
    added = AddedCluster(name="c9", like="c1")
    reply = ask(world, tenant=TENANT, add_cluster=replace(added, model="", like="c1"))
    assert (reply.placed, reply.hidden) == ((moved("mine", would="c9"),), 0)
    larger = AddedCluster(name="c9", model="T4", nodes=2, gpus_a_node=1)
    reply = ask(world, tenant=TENANT, add_cluster=larger)
    assert (reply.placed, reply.hidden) == ((moved("mine", would="c9"),), 1)
    assert reply.counts["placed"] == 2
    assert len(ask(world, add_cluster=larger).placed) == 2


WRONG = {
    "nothing": ({}, "", f"exactly one of {', '.join(KINDS)}"),
    "two": (
        {"cordon": CordonRequest(cluster="c1"), "queue": SupposedQueue(queue="q")},
        "",
        f"exactly one of {', '.join(KINDS)}",
    ),
    "no such cluster": ({"cordon": CordonRequest(cluster="c7")}, "cordon.cluster", "one of c1"),
    "no such node": (
        {"uncordon": CordonRequest(cluster="c1", node="n7")},
        "uncordon.node",
        "a node of c1 that has reported",
    ),
    "a name in use": (
        {"add_cluster": AddedCluster(name="c1", like="c1")},
        "add_cluster.name",
        "a name that no cluster has yet",
    ),
    "like nothing": (
        {"add_cluster": AddedCluster(name="c9", like="c7")},
        "add_cluster.like",
        "one of c1",
    ),
    "neither": (
        {"add_cluster": AddedCluster(name="c9")},
        "add_cluster",
        "either like (a cluster) or model (of GPU)",
    ),
    "an id in use": ({"submit": strict(job("runs"))}, "submit.id", "an id that is not in use"),
}


@pytest.mark.parametrize(("asked", "field", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_supposed_is_refused(
    asked: dict[str, Any], field: str, expected: str
) -> None:
    world = fleet(c1={"gpus": 4})
    start(world, job("runs"))
    refusal = answer(world, tenant=TENANT, **asked)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field, refusal.expected) == ("invalid", field, expected)


@pytest.mark.parametrize(("many", "rest"), [(10, ""), (11, " and 1 more")])
def test_a_refusal_names_ten_clusters_and_counts_the_others(many: int, rest: str) -> None:
    world = fleet(**{f"c{number:02}": {"gpus": 1} for number in range(many)})
    refusal = answer(world, tenant=TENANT, cordon=CordonRequest(cluster="nowhere"))
    assert isinstance(refusal, Refusal)
    named = ", ".join(f"c{number:02}" for number in range(10))
    assert refusal.expected == f"one of {named}{rest}"


def test_the_work_is_bounded_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("AT_ONCE", 2), ("MOST_PLACED", 4), ("MOST_RANKED", 1), ("TOLD", 3)):
        monkeypatch.setattr(module, name, limit)
    world = fleet(c1={"gpus": 2})
    for name in ("a", "b"):
        start(world, job(name))
    for number in range(9):
        world.submit(job(f"j{number}"))
    world.settle()
    reply = ask(world, add_cluster=AddedCluster(name="c9", model="T4", nodes=4, gpus_a_node=1))
    assert (len(reply.placed), reply.counts["placed"], len(reply.elsewhere)) == (3, 4, 1)
    assert reply.capped == (
        "1 of 2 placements were looked at",
        "the first 4 placements were looked at",
    )


def test_whoever_runs_it_may_cut_it_short() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, job("runs"))
    world.submit(job("waits"))
    world.settle()
    budget = Budget()
    budget.spent = True
    reply = answer(world, budget=budget, cordon=CordonRequest(cluster="c1"))
    assert isinstance(reply, WhatifReply)
    assert reply.counts == {}
    assert reply.capped == (
        "it took too long: not all ranks were looked at",
        "it took too long: not all waiting jobs were looked at",
        "it took too long: not all placements were looked at",
    )


def test_a_job_that_lives_on_while_it_is_looked_at_drops_out_of_the_answer() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, job("runs"))
    for name in ("a", "b"):
        world.submit(job(name))
    world.settle()
    request = WhatifRequest(add_cluster=AddedCluster(name="c9", model="T4", nodes=1))
    steps = world.whatif(None, request, world.now_s, Budget())
    next(steps)  # the copy is made
    world.fact(profile("c5"), alive("c5"), node("c5", gpus=1))
    world.settle()  # and "a" is placed on a cluster that the copy does not know
    reply = the_end_of(steps)
    assert isinstance(reply, WhatifReply)
    assert [m.id for m in reply.placed] == ["b"]
    assert world.placed_on(next(k for k in world.workloads if k.endswith("/a"))) == "c5"


# The law: whatever is asked, the resolver knows and decides what it would have without.

CHANGES = st.one_of(
    st.builds(
        lambda gpus, priority: {
            "submit": strict(job("asked", gpus=gpus, priority=priority, queue="q"))
        },
        st.integers(0, 9),
        st.integers(-1, 1),
    ),
    st.builds(
        lambda verb, cluster, name: {verb: CordonRequest(cluster=cluster, node=name)},
        st.sampled_from(["cordon", "uncordon"]),
        st.sampled_from(["c1", "c2"]),
        st.sampled_from([None, "n1"]),
    ),
    st.builds(
        lambda like, nodes: {
            "add_cluster": AddedCluster(
                name="c9", like=like, model="" if like else "A100", nodes=nodes
            )
        },
        st.sampled_from(["", "c1", "c2"]),
        st.integers(1, 3),
    ),
    st.builds(
        lambda priority, held, limit: {
            "queue": SupposedQueue(
                queue="q", priority=priority, held=held, capability_gpu_milli=limit
            )
        },
        st.integers(-1, 1),
        st.booleans(),
        st.sampled_from([None, 0, 2000]),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(1, 2), st.booleans(), st.sampled_from(["default", "q"])
        ),
        max_size=10,
    ),
    settled=st.booleans(),
    changes=st.lists(CHANGES, min_size=1, max_size=3),
)
def test_asking_changes_nothing(
    jobs: list[tuple[int, int, bool, str]], settled: bool, changes: list[dict[str, Any]]
) -> None:
    asked, unasked = (a_history(jobs, settled) for _ in range(2))
    before = shown(asked.resolver.know)
    for change in changes:
        assert isinstance(answer(asked, **change), WhatifReply)
        assert shown(asked.resolver.know) == before
    assert shown(asked.resolver.know) == shown(unasked.resolver.know)
    plans = [[p.decision for p in world.settle()] for world in (asked, unasked)]
    assert plans[0] == plans[1]


def a_history(jobs: list[tuple[int, int, bool, str]], settled: bool) -> World:
    taint = Taint(key="k", effect="NoSchedule")
    world = fleet(c1={"gpus": 4}, c2={"gpus": 8, "model": "A100"}, c3={"taints": (taint,)})
    world.control(QueueSetting(queue="q", priority=1, capability_gpu_milli=6000))
    for number, (gpus, count, runs, queue) in enumerate(jobs):
        request = job(f"j{number}", queue=queue, pod_sets=(pod_set(gpus=gpus, count=count),))
        name = world.submit(request)
        if runs:
            world.settle()
            if world.workloads[name].live:
                world.claim(name)
    if settled:
        world.settle()
    world.resolver.know.fleet.arrange()
    return world


def shown(value: object) -> object:
    """All that an object holds, as plain values that can be compared; caches left out."""
    return _shown(value, set())


def _shown(value: Any, seen: set[int]) -> object:
    if value is None or isinstance(value, bool | int | float | str | bytes | msgspec.Struct):
        return value if not isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
    if hasattr(value, "tolist"):
        return str(value.tolist())  # in which what is no number is like itself
    if isinstance(value, dict):
        return {str(key): _shown(each, seen) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each, seen) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if id(value) in seen or callable(value):
        return type(value).__name__
    seen.add(id(value))
    bases = type(value).__mro__
    slots = [n for base in bases for n in base.__dict__.get("__slots__", ())]
    names = [*slots, *getattr(value, "__dict__", {})]
    return {n: _shown(getattr(value, n), seen) for n in names if n not in NOT_KNOWLEDGE}


# Worked out from the rest on demand, so that a look fills them.
NOT_KNOWLEDGE = {"suitables", "filtered"}
