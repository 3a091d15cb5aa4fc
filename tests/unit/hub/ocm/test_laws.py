"""What holds at every step of the hub's side, whatever is told and however writes end."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from berthmaster.hub.ocm.core.instructions import Write, WriteScore
from berthmaster.hub.ocm.core.objects import PlacementScore
from berthmaster.hub.ocm.core.scores import FIXED_NAMES
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import seconds
from tests.unit.hub.ocm.builders import NAME, managed
from tests.unit.hub.ocm.story import Story


class Life(RuleBasedStateMachine):
    """Whatever is told in whatever order, and however writes end: laws hold at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.told_s: dict[str, float] = {}
        self.fresh: dict[str, bool] = {}
        self.flying: list[Write] = []
        self.stands: dict[str, WriteScore] = {}

    clusters = st.sampled_from(["a", "b", "c"])

    @initialize()
    def begin(self) -> None:
        for cluster in ("a", "b"):
            self.story.sees(managed(cluster))

    @rule(cluster=clusters, free=st.integers(0, 20), fresh=st.booleans())
    def tell(self, cluster: str, free: int, fresh: bool) -> None:
        self.story.tell(cluster, free=free, freshness="fresh" if fresh else "stale")
        self.told_s[cluster], self.fresh[cluster] = self.story.now_s, fresh

    @rule(after_s=st.floats(0.0, 40.0))
    def act(self, after_s: float) -> None:
        for each in self.story.act(after_s):
            if not isinstance(each, KubeEvent):
                assert each.key not in [other.key for other in self.flying]
                self.flying.append(each)

    @rule(outcome=st.sampled_from([*Outcome, Outcome.DONE, Outcome.DONE]))
    def land(self, outcome: Outcome) -> None:
        if not self.flying:
            return
        write = self.flying.pop(0)
        if outcome is Outcome.DONE:
            self.story.stored(write)
            if isinstance(write, WriteScore):
                self.stands[write.key[1]] = write
        else:
            self.story.hub.on_answer(write, Answer(outcome, why="x"), self.story.now_s)

    @rule()
    def somebody_deletes(self) -> None:
        thing = self.story.hub.targets.all[("score", "a", NAME)].thing
        if thing is not None:
            self.story.sees(thing, gone=True)

    @invariant()
    def old_news_are_never_written_as_live(self) -> None:
        for write in self.flying:
            if isinstance(write, WriteScore):
                assert len(write.scores) >= len(FIXED_NAMES)
                worst = set(write.scores.values()) == {-100}
                if write.status == "True" or write.reason == "Stale":
                    assert worst == (write.status == "False")
                if write.status == "True":
                    assert write.key[1] in self.told_s
        for key in self.story.hub.targets.all:
            assert key[1] != "c"  # nobody manages it

    @invariant()
    def it_knows_when_to_wake(self) -> None:
        targets = self.story.hub.targets
        assert targets.on_the_way == sum(one.on_the_way for one in targets.all.values())
        assert not self.flying or targets.on_the_way >= len(self.flying)

    def teardown(self) -> None:
        """In the end, with a server that answers, all is as it should be."""
        for write in self.flying:
            self.story.hub.on_answer(write, Answer(Outcome.LATER), self.story.now_s)
        for cluster in ("a", "b"):
            self.story.tell(cluster, free=7)
        for _ in range(200):
            self.story.now_s += 5
            for cluster in ("a", "b"):
                self.story.tell(cluster, free=7)
            self.story.settle()
        for cluster in ("a", "b"):
            thing = self.story.hub.targets.all["score", cluster, NAME].thing
            assert isinstance(thing, PlacementScore)
            found: Mapping[str, int] = {one.name: one.value for one in thing.status.scores}
            assert found["gpuClusterAvailable"] == -30
            assert seconds(thing.status.valid_until) > self.story.now_s


Life.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
