"""Laws of the resolver over any history: same knowledge, same decision; nothing promised twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from berthmaster.control.resolver.core.counterfactual import Compared
from berthmaster.control.resolver.core.deciding.decide import decide
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.messages.control import ClusterLost, Cordon, QueueAmounts, QueueSetting
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import REFRESH_S, NodeGone, Stamp
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import World

CLUSTERS = ("a", "b", "c")


class Histories(RuleBasedStateMachine):
    """Anything that may happen to a resolver, in any order."""

    @initialize(limit=st.sampled_from([1, 3, 256]))
    def start(self, limit: int) -> None:
        self.world = World(Policy(commit_limit=limit, reservations=2, reserve_wait_s=30.0))
        self.counter = 1
        for index, cluster in enumerate(CLUSTERS):
            self.world.fact(profile(cluster), alive(cluster), node(cluster, gpus=index + 1))

    def _count(self) -> int:
        self.counter += 1
        return self.counter

    @rule(
        gpus=st.integers(0, 4),
        milli=st.sampled_from([1000, 1000, 250, 600]),
        count=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        queue=st.sampled_from(["default", "q"]),
        lasts_s=st.sampled_from([None, 3.0, 10.0, 60.0]),
    )
    def submit(
        self, gpus: int, milli: int, count: int, priority: int, queue: str, lasts_s: float | None
    ) -> None:
        pods = pod_set(gpus=gpus, gpu_milli=milli if gpus == 1 else 1000, count=count)
        name = f"j{len(self.world.workloads)}"
        request = job(name, priority=priority, queue=queue, pod_sets=(pods,))
        self.world.submit(replace(request, expected_duration_s=lasts_s))

    @rule(data=st.data())
    def wish(self, data: st.DataObject) -> None:
        waiting = sorted(n for n, w in self.world.workloads.items() if w.state == "queued")
        if not waiting:
            return
        name = data.draw(st.sampled_from(waiting))
        if data.draw(st.booleans()):
            self.world.append(self.world.cancelled(name))
        else:
            self.world.append(self.world.reprioritized(name, data.draw(st.integers(-1, 2))))

    @rule()
    def decide(self) -> None:
        self.world.decide()

    @rule(data=st.data())
    def live_on(self, data: st.DataObject) -> None:
        live = sorted(n for n, w in self.world.workloads.items() if w.live)
        if not live:
            return
        name = data.draw(st.sampled_from(live))
        if not self.world.workloads[name].claimed_at_s:
            self.world.claim(name)
            return
        step = data.draw(st.sampled_from(["run", "evict", "succeed"]))
        getattr(self.world, step)(name)

    @rule(seconds=st.sampled_from([0.5, 5.0, 12.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.now_s += seconds

    @rule(cluster=st.sampled_from(CLUSTERS))
    def hear(self, cluster: str) -> None:
        self.world.fact(alive(cluster, counter=self._count()))

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        name=st.sampled_from(["n1", "n2"]),
        gpus=st.integers(0, 4),
        foreign=st.lists(st.sampled_from([0, 300, 1000]), max_size=4),
    )
    def report(self, cluster: str, name: str, gpus: int, foreign: list[int]) -> None:
        self.world.fact(
            node(
                cluster, name, gpus=gpus, foreign_milli=tuple(foreign[:gpus]), counter=self._count()
            )
        )

    @rule(cluster=st.sampled_from(CLUSTERS))
    def remove_node(self, cluster: str) -> None:
        stamp = Stamp(epoch=1, counter=self._count())
        self.world.fact(NodeGone(cluster=cluster, node="n2", stamp=stamp, observed_at_s=0.0))

    @rule(cluster=st.sampled_from(CLUSTERS), on=st.booleans(), whole=st.booleans())
    def cordon(self, cluster: str, on: bool, whole: bool) -> None:
        self.world.control(Cordon(cluster=cluster, node=None if whole else "n1", cordoned=on))

    @rule(cluster=st.sampled_from(CLUSTERS), on=st.booleans())
    def lose(self, cluster: str, on: bool) -> None:
        self.world.control(ClusterLost(cluster=cluster, lost=on, reason="test"))
        for append in self.world.resolver.endings(self.world.now_s):
            self.world.append(append.event)

    @rule(
        held=st.booleans(),
        limit=st.sampled_from([None, None, 0, 2000]),
        guarantee=st.sampled_from([None, 1000, 3000]),
        running=st.sampled_from([None, None, 1, 2]),
        priority=st.integers(0, 1),
    )
    def set_queue(
        self,
        held: bool,
        limit: int | None,
        guarantee: int | None,
        running: int | None,
        priority: int,
    ) -> None:
        amounts = QueueAmounts(capability=limit, guarantee=guarantee)
        self.world.control(
            QueueSetting(
                queue="q",
                held=held,
                resources={"gpu/T4": amounts},
                guarantee_gpu_milli=guarantee,
                max_running_jobs=running,
                priority=priority,
            )
        )

    @precondition(lambda self: self.world.resolver.commits.pending is None)
    @invariant()
    def folding_anew_decides_the_same(self) -> None:
        """What is kept for speed never decides: new knowledge from the same messages agrees."""
        world = self.world
        if world.resolver.behind:
            return
        fresh = Knowledge("all")
        decisions = dict(world.decisions)
        log = sorted(
            [*((s, e) for s, _, e in world.events), *decisions.items()], key=lambda x: x[0]
        )
        stored_at = {s: at for s, at, _ in world.events}
        for sequence, message in log:
            if sequence in decisions:
                fresh.take_decision(decisions[sequence], sequence)
            else:
                fresh.take_event(message, sequence, stored_at[sequence])  # type: ignore[arg-type]
        for sequence, at_s, _, fact in world.facts:
            fresh.take_fact(fact, sequence, at_s)
        for sequence, control in world.controls:
            fresh.take_control(control, sequence)
        restored = Knowledge("all")
        restore(restored, snapshot_of(world.resolver.know))
        for sequence, at_s, _, fact in world.facts:
            restored.take_fact(fact, sequence, at_s)
        for sequence, control in world.controls:
            restored.take_control(control, sequence)
        old = world.resolver.know
        plans = [decide(k, world.policy, world.now_s, "x") for k in (old, fresh, restored)]
        decided = [p and (p.decision, p.events) for p in plans]
        assert decided[0] == decided[1]
        assert decided[0] == decided[2]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            report = replay(self.world.inputs(), "all")
            assert report.first_difference is None
            assert report.equal == report.decisions
            self.world.check()


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def test_a_decision_that_was_tampered_with_is_shown_with_its_field() -> None:
    world = World()
    world.fact(profile(), alive(), node())
    world.submit(job())
    world.settle()
    inputs = world.inputs()
    [(sequence, decision)] = inputs.decisions
    forged = decision.__class__(
        **{f: getattr(decision, f) for f in decision.__struct_fields__} | {"now_s": 1001.0}
    )
    assert encode(forged) != encode(decision)
    report = replay(inputs._replace(decisions=[(sequence, forged)]), "all")
    assert report.equal == 0
    assert report.first_difference is not None
    assert report.first_difference.field.startswith("placements[0].ranking[0]")


def test_another_policy_shows_what_would_have_been_different() -> None:
    world = World()
    world.fact(profile("a"), alive("a"), node("a", gpus=8))
    world.fact(profile("b"), alive("b"), node("b", gpus=2))
    world.submit(job(gpus=2))
    world.settle()
    spread = replay(world.inputs(), "all", policy=Policy(fit=0.0, room=0.0, idle=0.0))
    assert spread.first_difference is not None
    assert replay(world.inputs(), "all").first_difference is None


def test_decisions_of_other_code_are_not_called_equal() -> None:
    world = World()
    world.fact(profile(), alive(), node())
    world.submit(job())
    world.settle()
    report = replay(world.inputs(), "all", engine="other")
    assert (report.decisions, report.not_repeatable, report.different) == (1, 0, 0)
    assert report.other_engines == {
        world.decisions[0][1].engine: Compared(decisions=1, same=1, would_differ=0)
    }


def test_two_resolvers_that_read_the_same_decide_the_same() -> None:
    world = World()
    twin = Resolver("all", world.resolver.name, world.policy)
    world.fact(profile(), alive(), node())
    for number in range(5):
        world.submit(job(f"j{number}", gpus=2))
    for sequence, at_s, event in world.events:
        twin.on_event(event, sequence, at_s)
    for sequence, at_s, _, fact in world.facts:
        twin.on_fact(fact, sequence, at_s)
    mine, yours = twin.decide(world.now_s), world.resolver.decide(world.now_s)
    assert mine is not None
    assert yours is not None
    assert (mine.decision, mine.events) == (yours.decision, yours.events)


def test_what_was_decided_on_facts_that_are_not_kept_is_not_called_equal_or_different() -> None:
    world = World()
    world.fact(profile(), alive(), node(counter=1))
    world.submit(job("early"))
    world.settle()
    told_again_s = world.now_s + REFRESH_S
    world.now_s = told_again_s
    world.fact(profile(), alive(counter=2), node(counter=2))
    world.now_s += 1.2 * REFRESH_S
    world.fact(alive(counter=3))
    world.submit(job("late"))
    world.settle()
    inputs = world.inputs()
    kept = [fact for fact in inputs.facts if fact[1] >= told_again_s]
    report = replay(inputs._replace(facts=kept, facts_from=kept[0][0]), "all")
    assert (report.decisions, report.equal, report.not_repeatable) == (2, 1, 1)
    assert report.why_not == "what it was made on is not kept any more"
