"""Laws that hold whatever happens, by a state machine against a small Kueue: see world.World.

- Nominations are only added within one of Kueue's attempts, and only where the contract allows it.
- A workload whose copy a worker has admitted is nominated to no other cluster: nothing runs twice.
- Every story is legal by the tables of lifecycle/, whoever dies when.
- What Kueue says is what the log says, as soon as there is time to say it.
- Nobody stands still on our account: when all is well again, whoever may be nominated is.
- A check of ours says Retry only of what Kueue has not taken back.
- Whoever goes so that another has room has less priority, and nobody goes twice for one attempt.
- Who holds what, as it is kept, is what everything that is open comes to.
"""

from collections import Counter
from typing import Any, Literal

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berthmaster.hub.multikueue.core.deciding.steps import REPORT_S
from berthmaster.hub.multikueue.core.instructions import Nominate
from berthmaster.hub.multikueue.core.known.workload_view import Rooms
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.kueue.contract import forbidden
from berthmaster.lib.kueue.queues import Preemption
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.messages.workload import CancelRequested, Held, HoldReleased, MoveRequested
from tests.unit.hub.multikueue.hub_objects import (
    CHECK,
    OWN_CHECK,
    cluster,
    cluster_queue,
    config,
    copy_report,
    own_check,
    queue_report,
)
from tests.unit.hub.multikueue.world import World

NAMES = ("a", "b", "c")
PRIORITIES = {"a": 0, "b": 5, "c": 10}
CLUSTERS = ("w1", "w2", "w3")
TROUBLES = ("stopped", "no local queue", "cordoned", "no connection", "another order")
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Contract(RuleBasedStateMachine):
    """A hub, three workers, three jobs, and whatever can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.all_workers()
        lower = Preemption(within_cluster_queue="LowerPriority")
        self.world.put(cluster_queue(own_check=True, preemption=lower))
        self.world.put(own_check())
        self.world.set_parameters(OWN_CHECK, parse_selector(""))
        self.world.begin()
        self.refused = 0
        self.double: list[str] = []
        self.world.conflict = self.conflicts
        self.made: set[str] = set()
        self.admitted: dict[str, str] = {}  # job -> worker whose copy runs, known to the hub or not

    def conflicts(self, write: Nominate) -> bool:
        job = write.at[1].removeprefix("job-")
        running = self.admitted.get(job)
        fresh = running is not None and self.heard_of(job, running)
        if fresh and write.cluster != running:
            self.double.append(f"{job} runs in {running} and was nominated to {write.cluster}")
        self.refused -= 1
        return self.refused >= 0

    def heard_of(self, job: str, worker: str) -> bool:
        report = self.world.core.know.copies.get((worker, "team", f"job-{job}"))
        return report is not None and report.admitted

    def pick(self, data: Any, right: Any) -> str | None:
        """A job of which something is true."""
        found = sorted(name for name in self.made if right(self.world.kueue(name)))
        return data.draw(st.sampled_from(found)) if found else None

    # People

    @initialize(ready=st.sets(st.sampled_from(NAMES), min_size=1))
    def jobs_are_there(self, ready: set[str]) -> None:
        for name in sorted(ready):
            self.submit(name)
            self.world.settle()
            self.world.reserve(name, own="Pending")
        self.world.settle()

    @rule(name=st.sampled_from(NAMES))
    def submit(self, name: str) -> None:
        if name not in self.made:
            self.made.add(name)
            uid = f"{len(self.world.log.messages):08d}-0"
            self.world.submit(name, uid=uid, priority=PRIORITIES[name])

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        name = self.pick(data, lambda _: True)
        if name is not None:
            self.world.remove(name)
            self.forget(name)
            self.made.discard(name)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        name = self.pick(data, lambda _: True)
        if name is None:
            return
        bus = self.world.log.folds.get(self.world.name(name))
        self.world.fold()
        if bus is not None and bus.state in (State.CLAIMED, State.ADMITTED, State.RUNNING):
            self.world.write_event(
                CancelRequested(
                    tenant=bus.tenant,
                    id=bus.id,
                    after=bus.sequence,
                    at_s=0,
                    by="gateway",
                    cluster=bus.cluster,
                )
            )

    @rule(data=st.data(), how=st.sampled_from(("evict", "move")))
    def ask_to_go(self, data: Any, how: Literal["evict", "move"]) -> None:
        name = self.pick(data, lambda _: True)
        if name is None:
            return
        bus = self.world.log.folds.get(self.world.name(name))
        self.world.fold()
        if bus is not None and bus.state in (State.CLAIMED, State.ADMITTED, State.RUNNING):
            self.world.write_event(
                MoveRequested(
                    tenant=bus.tenant,
                    id=bus.id,
                    after=bus.sequence,
                    at_s=0,
                    by="gateway",
                    cluster=bus.cluster,
                    attempt=bus.attempt,
                    how=how,
                    who="operator ann",
                )
            )
            self.world.settle()

    @rule(data=st.data())
    def hold_or_release(self, data: Any) -> None:
        name = self.pick(data, lambda _: True)
        if name is None:
            return
        bus = self.world.log.folds.get(self.world.name(name))
        self.world.fold()
        if bus is None or bus.state in ENDED:
            return
        tenant, name, after = bus.tenant, bus.id, bus.sequence
        if bus.hold is None:
            self.world.write_event(
                Held(tenant=tenant, id=name, after=after, at_s=0, by="gateway", who="ann")
            )
        else:
            self.world.write_event(
                HoldReleased(tenant=tenant, id=name, after=after, at_s=0, by="gateway", who="ann")
            )
        self.world.settle()

    # Kueue

    @rule(data=st.data())
    def reserve(self, data: Any) -> None:
        def waits(w: KueueWorkload) -> bool:
            return not w.holds("QuotaReserved") and not w.holds("Finished") and w.active

        name = self.pick(data, waits)
        if name is not None:
            self.world.reserve(name, own="Pending")

    @rule(data=st.data(), known=st.booleans())
    def admit(self, data: Any, known: bool) -> None:
        """A worker admits its copy; the hub takes that over, now or later."""
        name = self.pick(
            data, lambda w: bool(w.nominated) and not w.cluster_name and w.holds("QuotaReserved")
        )
        if name is None:
            return
        worker = self.admitted.get(name)
        if worker is None:
            worker = data.draw(st.sampled_from(self.world.kueue(name).nominated))
            self.admitted[name] = worker
        report = copy_report(worker, name, quota_reserved=True, admitted=True)
        self.world.fact(f"{worker}/copy/{name}", report)
        if known:
            self.world.admit(name, worker)

    @rule(data=st.data())
    def start(self, data: Any) -> None:
        name = self.pick(data, lambda w: bool(w.cluster_name) and not w.holds("Finished"))
        if name is not None:
            self.world.start(name)

    @rule(data=st.data())
    def evict(self, data: Any) -> None:
        name = self.pick(data, lambda w: w.holds("QuotaReserved") and not w.holds("Finished"))
        if name is not None:
            self.world.evict(name)
            self.forget(name)

    @rule()
    def retry(self) -> None:
        """Kueue ends whatever has a check that says so, and queues it again."""
        for name in sorted(self.made):
            found = self.world.kueue(name)
            state = found.check(OWN_CHECK)
            if state is not None and state.state == "Retry" and not found.holds("Finished"):
                self.world.evict(name, "AdmissionCheck", f"Evicted due to {state.message}")
                self.forget(name)

    @rule(data=st.data(), good=st.booleans())
    def finish(self, data: Any, good: bool) -> None:
        name = self.pick(data, lambda w: bool(w.cluster_name) and not w.holds("Finished"))
        if name is not None:
            self.world.finish(name, "Succeeded" if good else "Failed", "it ended")

    @rule(data=st.data())
    def switched_off(self, data: Any) -> None:
        """Kueue sees that a Workload is inactive."""
        name = self.pick(
            data,
            lambda w: not w.active and w.holds("QuotaReserved") and not w.holds("Finished"),
        )
        if name is not None:
            self.world.evict(name, "Deactivated", "The workload is deactivated")
            self.forget(name)

    def forget(self, name: str) -> None:
        """Its copies are removed from the workers, which say so."""
        self.admitted.pop(name, None)
        for worker in CLUSTERS:
            if f"{worker}/copy/{name}" in self.world.fleet:
                gone = copy_report(worker, name, gone=True)
                self.world.fact(f"{worker}/copy/{name}", gone)

    # The fleet

    @rule(name=st.sampled_from(CLUSTERS), free=st.integers(0, 8))
    def others_take_gpus(self, name: str, free: int) -> None:
        self.world.worker(name, free=free)

    @rule(who=st.permutations(NAMES), worker=st.sampled_from(CLUSTERS))
    def one_comes_when_the_fleet_is_full(self, who: list[str], worker: str) -> None:
        """One runs, if it may, and there is no room for the other."""
        running, urgent = who[:2]
        for name in (running, urgent):
            for each in CLUSTERS:
                free = 8 if (each, name) == (worker, running) else 0
                self.world.worker(each, free=free)
            self.submit(name)
            self.world.settle()
            hub = self.world.kueue(name)
            if not hub.holds("QuotaReserved") and not hub.holds("Finished") and hub.active:
                self.world.reserve(name, own="Pending")
            self.world.settle()
            nominated = self.world.nominated(name)
            if name == running and nominated and name not in self.admitted:
                self.admitted[name] = nominated[0]
                report = copy_report(nominated[0], name, quota_reserved=True, admitted=True)
                self.world.fact(f"{nominated[0]}/copy/{name}", report)
                self.world.admit(name, nominated[0])
                self.world.settle()

    @rule(name=st.sampled_from(CLUSTERS), what=st.sampled_from(TROUBLES), bad=st.booleans())
    def trouble(self, name: str, what: str, bad: bool) -> None:
        """Something is wrong with a cluster, or right again."""
        world = self.world
        match what:
            case "stopped":
                world.fact(f"{name}/queue", queue_report(name, stopped=bad))
            case "no local queue":
                spaces = () if bad else ("team",)
                world.fact(f"{name}/queue", queue_report(name, namespaces=spaces))
            case "cordoned":
                world.set(Cordon(cluster=name, cordoned=bad, drain=bad))
            case "no connection":
                world.put(cluster(name, active=not bad))
            case _:
                world.put(config(*(CLUSTERS if bad else CLUSTERS[::-1])))

    # Us

    @rule(seconds=st.sampled_from((0.3, 6.0, 31.0)), heard=st.sets(st.sampled_from(CLUSTERS)))
    def time_passes(self, seconds: float, heard: set[str]) -> None:
        self.world.wait(seconds, step_s=max(0.3, seconds / 6), heard=sorted(heard or CLUSTERS))

    @rule()
    def look(self) -> None:
        self.world.settle()

    @rule(steps=st.integers(1, 3))
    def look_a_little(self, steps: int) -> None:
        for _ in range(steps):
            self.world.now_s += 0.001
            self.world.step()

    @rule(times=st.integers(1, 3))
    def conflict(self, times: int) -> None:
        self.refused = times

    @rule()
    def killed(self) -> None:
        self.world.restart()

    @rule(mode=st.sampled_from(("observe", "dispatch")))
    def another_mode(self, mode: str) -> None:
        self.world.restart(mode)

    @rule()
    def the_bus_is_away(self) -> None:
        self.world.blind(7.0)
        self.world.core.blindly.over()

    # Laws

    @invariant()
    def the_contract_holds(self) -> None:
        assert self.world.broken == []
        assert self.double == []

    @invariant()
    def every_story_is_legal(self) -> None:
        assert set(self.world.log.verdicts) <= {Verdict.COUNTED}

    @invariant()
    def who_holds_what_is_kept_as_it_is(self) -> None:
        """As somebody would have it who looked at everything that is open."""
        core, known = self.world.core, self.world.core.know
        anew = Rooms(known, core.hub)
        anew.heard_of(known.open)
        for worker in self.world.workers:
            kept, right = core.rooms.begun(worker), anew.begun(worker)
            assert {kind: set(names) for kind, names in kept.items() if names} == {
                kind: set(names) for kind, names in right.items()
            }
            assert set(core.rooms.awaiting(worker)) == set(anew.awaiting(worker))
            assert set(core.rooms.leaving(worker)) == set(anew.leaving(worker))
        used = {
            queue: held
            for queue, amounts in core.rooms.used().items()
            if (held := {name: n for name, n in amounts.items() if n})
        }
        assert used == {queue: amounts for queue, amounts in anew.used().items() if amounts}
        out = core.rooms.on_their_way_out()
        assert Counter(map(str, out)) == Counter(map(str, anew.on_their_way_out()))

    @invariant()
    def less_priority_makes_room_for_more(self) -> None:
        found = [order for each in self.world.decisions() for order in each.evictions]
        assert len({(order.id, order.attempt) for order in found}) == len(found)
        for order in found:
            goes, stays = order.id.split("-")[1], order.for_id.split("-")[1]
            assert PRIORITIES[goes] < PRIORITIES[stays]

    @precondition(lambda self: self.made)
    @rule()
    def the_log_follows_kueue(self) -> None:
        self.world.wait(REPORT_S + 1.0, heard=CLUSTERS)
        for name in self.made:
            hub = self.world.kueue(name)
            bus = self.as_logged(name)
            if bus is None:
                continue
            if hub.cluster_name and bus.state not in ENDED:
                assert (bus.cluster, bus.live) == (hub.cluster_name, True)
            if hub.holds("Finished"):
                assert bus.state in ENDED

    def as_logged(self, name: str) -> Workload | None:
        """A job as the log has it; None: it came and ended while nobody lived to see it, and since
        the API server of these tests gives no times, it may be history as well."""
        found = self.world.log.folds.get(self.world.name(name))
        assert found is not None or self.world.kueue(name).holds("Finished")
        return found

    def teardown(self) -> None:
        """All is well again: nobody waits for us."""
        world = self.world
        self.refused = 0
        self.retry()
        world.restart("dispatch")
        world.put(config(*CLUSTERS))
        for name in CLUSTERS:
            world.put(cluster(name))
            world.set(Cordon(cluster=name, cordoned=False))
            world.worker(name, free=8)
            for job in NAMES:
                at = f"{name}/copy/{job}"
                if at in world.fleet and self.admitted.get(job) != name:
                    known = world.fleet[at][0]
                    assert isinstance(known, CopyReport)
                    if not known.gone:
                        world.fact(at, copy_report(name, job, gone=True))
        world.wait(10.0, step_s=1.0)
        self.retry()  # of what people had asked for meanwhile
        world.wait(3.0, step_s=1.0)
        for name in self.made:
            hub = world.kueue(name)
            bus = self.as_logged(name)
            if bus is None:
                continue
            if bus.hold is not None:
                # Who is cancelled as well is switched off: then its nomination is Kueue's to clear.
                assert not hub.nominated or bus.cancel_requested
                continue
            if not forbidden(hub, CHECK) and not bus.cancel_requested and bus.state not in ENDED:
                assert hub.nominated, (name, world.why(world.name(name)))
        self.the_contract_holds()
        self.every_story_is_legal()


Contract.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestContract = Contract.TestCase
