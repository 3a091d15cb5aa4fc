"""Whatever happens in whatever order: never a gap, never an orphan that stays, never a listed
cluster cut off."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berthmaster.hub.credentials.core.errors import StillListed
from berthmaster.hub.credentials.core.instructions import Forget, Mint, Revoke, Sweep
from tests.unit.hub.credentials.world import GRACE_S, HERE, LIFE_S, THERE, World, bootstrap, failed

SOURCES = (bootstrap(), bootstrap(version="2"), bootstrap(THERE, "3"))


class Lives(RuleBasedStateMachine):
    """One hub, two workers that have one name after the other, and many lives."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.core.begin()
        self.world.watch = self.what_kueue_has_is_not_revoked_while_it_may_be_used

    @initialize(held=st.booleans())
    def begins(self, held: bool) -> None:
        """Mostly what matters happens to a cluster that has its access."""
        if held:
            self.world.know()
            self.world.give(bootstrap())
            self.world.settle()

    # ---- people and time

    @rule()
    def arrives(self) -> None:
        self.world.know()

    @rule()
    def leaves(self) -> None:
        self.world.know(False)

    @rule(source=st.sampled_from(SOURCES))
    def bootstrap_is_given(self, source: object) -> None:
        self.world.give(source)  # type: ignore[arg-type]

    @rule()
    def bootstrap_is_taken(self) -> None:
        self.world.give(None)

    @precondition(lambda self: self.world.registered is not None)
    @rule()
    def is_listed(self) -> None:
        self.world.list_it()

    @rule()
    def is_not_listed(self) -> None:
        self.world.list_it(False)

    @rule(s=st.sampled_from((0.1, 5.0, GRACE_S)))
    def time_passes(self, s: float) -> None:
        # What is under way has a time limit: nothing of it is left after a minute.
        if s >= GRACE_S:
            while self.world.steps:
                self.step_is_lost(data_done=False)
        self.world.later(s)

    @rule(target_worker=st.sampled_from((HERE, THERE)), away=st.booleans())
    def worker_goes_or_comes(self, target_worker: object, away: bool) -> None:
        self.world.workers[target_worker.fingerprint].away = away  # type: ignore[attr-defined]

    # ---- what we do

    @rule()
    def it_acts(self) -> None:
        self.world.act()

    @rule(most=st.integers(1, 6))
    def it_goes_on(self, most: int) -> None:
        """It acts, and a few steps go well."""
        for _ in range(most):
            self.world.act()
            if not self.world.steps:
                return
            self.step_is_done()

    @rule()
    def renewal_comes(self) -> None:
        """Its time has come, and nothing else happened for long."""
        while self.world.steps:
            self.step_is_lost(data_done=False)
        self.world.later(LIFE_S * 0.67)

    @precondition(lambda self: self.world.steps)
    @rule()
    def step_is_done(self) -> None:
        world = self.world
        step = world.steps.pop(0)
        if step.__class__.__name__ == "Unregister" and world.listed:
            world.done(step, failed("listed", StillListed))  # the writer looks again
            return
        world.done(step, world.do(step))

    @precondition(lambda self: self.world.steps)
    @rule(data_done=st.booleans())
    def step_is_lost(self, data_done: bool) -> None:
        """No answer came, whether it was done or not."""
        world = self.world
        step = world.steps.pop(0)
        if data_done and isinstance(step, Mint | Sweep | Revoke | Forget):
            world.do(step)
        world.fail(step)

    @rule(data_done=st.booleans())
    def killed(self, data_done: bool) -> None:
        """In the middle of a step, that was done or not."""
        world = self.world
        if world.steps and data_done and isinstance(world.steps[0], Mint | Sweep | Revoke | Forget):
            world.do(world.steps[0])
        world.restart()

    # ---- what must always be so

    @invariant()
    def what_kueue_has_is_not_revoked_while_it_may_be_used(self) -> None:
        world = self.world
        if world.serial and world.registered is not None:
            assert world.works(), "Kueue's token was revoked under it"

    @invariant()
    def what_was_replaced_works_through_its_grace(self) -> None:
        world = self.world
        if not (world.known or world.listed) or not world.serial:
            return
        for serial, at_s in world.replaced.items():
            held_by = [w for w in world.workers.values() if serial in w.minted]
            if held_by and held_by[0] is world.worker and world.now_s - at_s < GRACE_S - 1:
                assert serial in held_by[0].bound, "revoked while somebody may still use it"

    @invariant()
    def listed_means_registered(self) -> None:
        if self.world.listed:
            assert self.world.registered is not None

    # ---- and in the end

    def teardown(self) -> None:
        world = self.world
        for worker in world.workers.values():
            worker.away = False
        while world.steps:
            self.step_is_lost(data_done=False)
        if world.source is None:
            world.give(bootstrap(version="9"))
        for _ in range(6):
            world.later(61)
            world.settle()
        assert world.source is not None
        worker = world.workers[world.source.endpoint.fingerprint]
        if world.known or world.listed:
            assert world.registered is not None
            assert world.works()
            # One that was replaced a moment ago has its grace left.
            late = {
                old for old, at_s in world.replaced.items() if world.now_s - at_s <= GRACE_S + 1
            }
            assert [one for one in worker.bound if one not in late] == [world.serial], "an orphan"
        else:
            world.later(LIFE_S + 61)
            world.settle()
            world.later(61)
            world.settle()
            assert (world.secret, world.registered) == (None, None)
            assert (worker.account, worker.bound) == (False, {}), "an orphan"


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
