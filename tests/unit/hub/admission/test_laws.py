"""Whatever people, Kueue, the bus and kills do, in any order: who has a job is not taken out of the
configuration, it is never emptied nor too long, nobody is reordered, and at rest all is as it
should be.

A dispatcher of Kueue's own is assumed, which knows nothing of marks and nominates every cluster
that the hub lists for whoever has passed the check.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from berthmaster.hub.admission.core.instructions import Instruction, WriteConfig
from tests.unit.hub.admission.hub_objects import CHECK, NAMESPACE, cluster, condition, placement
from tests.unit.hub.admission.world import SETTLE_S, World

NAMES = ("a", "b", "c", "d")  # few, so that they meet; see test_members.py for twenty
some = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)
one = st.sampled_from(NAMES)


class Hub(RuleBasedStateMachine):
    @initialize(wanted=some)
    def begin(self, wanted: list[str]) -> None:
        self.world = World(*NAMES, selected=wanted)
        self.before: tuple[str, ...] = ()
        self.jobs = 0
        self.pending: list[Instruction] = []
        self.time(1.0)
        self.submit(admitted=True)

    # What people and other controllers do

    @rule(wanted=some)
    def select(self, wanted: list[str]) -> None:
        self.world.select(*wanted)

    @rule(keep=one)
    def replace(self, keep: str) -> None:
        """All but one are selected no longer, and time goes by."""
        self.world.select(keep)
        self.wait()

    @rule()
    def misconfigure(self) -> None:
        self.world.put(placement("t4", condition("PlacementMisconfigured", True)))
        self.world.select()
        self.do()
        self.world.put(placement())

    @rule(name=one)
    def lose_cluster(self, name: str) -> None:
        self.world.drop("MultiKueueCluster", name)
        self.do()
        self.world.put(cluster(name))

    @rule(admitted=st.booleans())
    def submit(self, admitted: bool = True) -> None:
        if self.jobs < 4:
            self.world.submit(f"job-{self.jobs}")
            self.jobs += 1
            self.time(1.0)
            if admitted:
                self.go_on(self.jobs - 1, "admit")

    @rule(number=st.integers(0, 3), what=st.sampled_from(("admit", "evict", "finish")))
    def go_on(self, number: int, what: str) -> None:
        if number >= self.jobs:
            return
        name = f"job-{number}"
        workload = self.world.workload(name)
        if workload.holds("Finished"):
            return
        if what == "evict":
            self.world.evict(name)
        elif what == "finish":
            self.world.finish(name)
        elif workload.status and workload.status.nominated_cluster_names:
            self.world.admit(name, workload.status.nominated_cluster_names[0])

    @rule()
    def dispatch_unheard(self) -> None:
        """Kueue acts, and the mirror does not know it yet when the core thinks."""
        self.world.lagging = True
        self.dispatch()
        self.do()

    @rule(keep=one)
    def race(self, keep: str) -> None:
        """Somebody has just passed when all but one are selected no longer."""
        self.submit(admitted=False)
        self.world.select(keep)
        self.do()
        self.dispatch_unheard()

    def dispatch(self) -> None:
        config = self.world.config
        for number in range(self.jobs):
            workload = self.world.workload(f"job-{number}")
            state = workload.check(CHECK)
            chosen = workload.status is not None and workload.status.cluster_name
            passed = state is not None and state.state == "Ready"
            if passed and not chosen and not workload.holds("Finished") and config is not None:
                self.world.change(f"job-{number}", nominated_cluster_names=config.clusters)

    # What the service meets

    @rule()
    def bus_away(self) -> None:
        self.world.whole = False
        self.do()
        self.world.whole = True

    @rule()
    def refuse(self) -> None:
        self.world.refuse = "not allowed"
        self.do()
        self.world.refuse = ""

    @rule()
    def kill(self) -> None:
        self.pending = []
        self.world.restart()

    @rule()
    def lag(self) -> None:
        self.world.lagging = True

    @rule()
    def think(self) -> None:
        """What it asks for is on its way, and done some time later."""
        self.pending += self.world.look()

    @rule(seconds=st.sampled_from((0.1, 1.0, SETTLE_S, 30.0)))
    def time(self, seconds: float) -> None:
        """The dispatcher acts and the mirror hears of it within less than a breath."""
        self.world.now_s += min(seconds, SETTLE_S / 2)
        self.dispatch()
        self.world.lagging = False
        self.world.deliver()
        self.do()
        self.world.now_s += seconds - min(seconds, SETTLE_S / 2)
        self.do()

    @rule()
    def wait(self) -> None:
        for _ in range(3):
            self.time(SETTLE_S)

    @rule()
    def do(self) -> None:
        pending, self.pending = [*self.pending, *self.world.look()], []
        for instruction in pending:
            self.check_write(instruction)
            self.world.perform([instruction])

    def check_write(self, instruction: Instruction) -> None:
        """Against what is true on the server, and not what the mirror knows."""
        world = self.world
        config = world.config
        if not isinstance(instruction, WriteConfig) or config is None or world.refuse:
            return
        base = instruction.base
        if not base or base.metadata.resource_version != config.metadata.resource_version:
            return  # refused
        gone = set(config.clusters) - set(instruction.clusters)
        for number in range(self.jobs):
            workload = world.workload(f"job-{number}")
            if not workload.holds("Finished"):
                assert not workload.clusters & gone, (workload, gone)

    # What holds

    @invariant()
    def listed(self) -> None:
        config = self.world.config
        now = config.clusters if config is not None else ()
        assert len(now) <= 20
        assert len(set(now)) == len(now)
        assert now or not self.before
        kept = [name for name in self.before if name in now]
        assert list(now[: len(kept)]) == kept, "who stays keeps the order and stands first"
        self.before = now

    def teardown(self) -> None:
        """When everything works again and all jobs end, the wish comes true."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.lagging, world.refuse, world.whole = False, "", True
        world.deliver()
        self.do()
        for number in range(self.jobs):
            if not world.workload(f"job-{number}").holds("Finished"):
                world.finish(f"job-{number}")
        world.select(*NAMES[:3])
        for name in NAMES[:3]:
            world.put(cluster(name))
        world.wait(60.0)
        config = world.config
        assert config is not None
        assert set(config.clusters) == set(NAMES[:3])
        assert config.draining == ()
        assert world.active()[0] == "Active"
        world.submit("last")
        world.wait(1.0)
        assert world.state("last")[0] == "Ready"
        assert ("Placement", NAMESPACE, "t4") in world.objects


Hub.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestHub = Hub.TestCase
