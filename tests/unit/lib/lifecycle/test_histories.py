"""Any interleaving of writers on one aggregate, some of whose stale events are stored all the same.

The log guards as the server does, but a write that should be refused may be let in (as replicated
servers do with guards that are spelled differently). Writers act on what they last read; executors
start pods only after a reload that shows their claim. Whatever happens, every reader folds to the
same workload, it ends at most once, and no two attempts run at the same time.
"""

import copy
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berthmaster.control.archivist.core.archivist import removal_order, stays
from berthmaster.lib.lifecycle.fold import Verdict, fold_history, offer
from berthmaster.lib.lifecycle.states import TRANSITIONS, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Claimed,
    Evicted,
    Failed,
    Placed,
    Released,
    Reprioritized,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.lives import ENDINGS, fitting, new

CLUSTERS = ("c1", "c2")
MAY_WRITE: dict[str, frozenset[type[WorkloadEvent]]] = {
    "gateway": frozenset({Submitted, Released, Reprioritized, CancelRequested, Cancelled}),
    "resolver": frozenset({Placed, Withdrawn, Failed}),
    "executor": frozenset({Claimed, Admitted, Running, Evicted, Succeeded, Failed, Cancelled}),
}
EXECUTORS = ("executor/c1/a", "executor/c1/b", "executor/c2/a")
WRITERS = ("gateway/1", "resolver/1", "resolver/2", *EXECUTORS)
_CHANCES: st.SearchStrategy[int] = st.integers(0, 3)
NOT_YET_CLAIMED = frozenset({State.QUEUED, State.PLACED})


@dataclass
class Reader:
    workload: Workload = field(default_factory=new)
    read: int = 0  # the last sequence it was given
    verdicts: list[tuple[Verdict, WorkloadEvent]] = field(default_factory=list)

    def follow(self, log: list[tuple[int, WorkloadEvent]]) -> None:
        for sequence, event in log:
            if sequence > self.read:
                self.read = sequence
                verdict = offer(self.workload, event, sequence, float(sequence))
                self.verdicts.append((verdict, event))

    def counted(self) -> list[WorkloadEvent]:
        return [event for verdict, event in self.verdicts if verdict is Verdict.COUNTED]


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, WorkloadEvent]] = []
        self.sequence = 0
        self.views = {writer: new() for writer in WRITERS}
        self.awake = Reader()  # reads every event at once
        self.sleepy = Reader()  # reads when it is let
        self.pods: set[tuple[str, int]] = set()  # executor and attempt of what runs
        self.purged = False

    def reload(self, writer: str) -> Workload:
        """What the leader has, folded from the start."""
        story = [RecordedEvent(sequence=at, stored_at_s=float(at), event=e) for at, e in self.log]
        self.views[writer], _ = fold_history(new().tenant, new().id, story)
        return self.views[writer]

    @initialize()
    def submit(self) -> None:
        self._store(fitting(Submitted, new()))

    def _store(self, event: WorkloadEvent) -> None:
        self.sequence += 3  # other workloads take the sequences between
        self.log.append((self.sequence, event))
        self.awake.follow(self.log)

    @rule(writer=st.sampled_from(WRITERS))
    def look(self, writer: str) -> None:
        """A message woke a writer: it reloads. An executor whose claim stands starts its pods."""
        view = self.reload(writer)
        if view.state is State.CLAIMED and view.executor == writer:
            self.pods.add((writer, view.attempt))

    @rule(writer=st.sampled_from(WRITERS), data=st.data())
    def act(self, writer: str, data: st.DataObject) -> None:
        """As it should be: reload, write, see what came of it."""
        self.look(writer)
        self.write_late(writer, data)
        self.look(writer)

    @rule(writer=st.sampled_from(WRITERS), data=st.data())
    def write_late(self, writer: str, data: st.DataObject) -> None:
        """A writer that slept since it looked writes what its old view allows it."""
        view = self.views[writer]
        kinds = sorted(self._allowed(writer, view), key=lambda kind: kind.__name__)
        lasting = [kind for kind in kinds if kind not in ENDINGS]
        if lasting and data.draw(_CHANCES) > 0:  # most lives should be long ones
            kinds = lasting
        if not kinds:
            return
        kind: type[WorkloadEvent] = data.draw(st.sampled_from(kinds))
        changes: dict[str, object] = {"by": writer}
        if kind is Placed:
            changes["cluster"] = data.draw(st.sampled_from(CLUSTERS))
        elif kind is Claimed:
            changes["executor"] = writer
        event = fitting(kind, view, **changes)
        if kind in (Evicted, *ENDINGS):
            self.pods.discard((writer, view.attempt))  # gone before anything is said
        tail = self.log[-1][0]
        slips_in = event.after < tail and data.draw(_CHANCES) > 0
        if event.after == tail or slips_in:
            self._store(event)
        if slips_in:
            assert self.awake.verdicts[-1] == (Verdict.VOID, event)

    def _allowed(self, writer: str, view: Workload) -> frozenset[type[WorkloadEvent]]:
        role = writer.partition("/")[0]
        kinds = MAY_WRITE[role] & TRANSITIONS[view.state].keys()
        if role == "gateway" and view.state not in NOT_YET_CLAIMED:
            kinds -= {Cancelled}
        if role == "resolver" and view.state is not State.QUEUED:
            kinds -= {Failed}  # unless a person declared the cluster lost: not played here
        if role == "executor":
            its_own = view.executor == writer
            here = writer.split("/")[1] == view.cluster
            claims = here and view.state is State.PLACED
            kinds = kinds & {Claimed} if claims else kinds if its_own and view.live else frozenset()
        return kinds

    @precondition(lambda self: self.awake.workload.ended)
    @rule(kept=st.integers(0, 6))
    def purge(self, kept: int) -> None:
        """The archivist: what stands before the ending goes, some of it now."""
        ending = next(
            event
            for verdict, event in self.awake.verdicts
            if verdict is Verdict.COUNTED and isinstance(event, ENDINGS)
        )
        at = next(number for number, (_, event) in enumerate(self.log) if event is ending)
        counted = {id(event) for event in self.awake.counted()}
        story = [
            RecordedEvent(sequence=s, stored_at_s=0.0, event=e, void=id(e) not in counted)
            for s, e in self.log[:at]
        ]
        if stays([*story, RecordedEvent(sequence=0, stored_at_s=0.0, event=ending)]):
            return
        order = removal_order(story)
        gone = order[: max(0, len(order) - kept)]
        self.log = [(sequence, event) for sequence, event in self.log if sequence not in gone]
        self.purged = self.purged or bool(gone)

    @rule()
    def wake(self) -> None:
        """The sleepy reader catches up with what is there now."""
        self.sleepy.follow(self.log)
        before = copy.deepcopy(self.sleepy.workload)
        for sequence, event in self.log:  # and is told everything once more
            if sequence <= before.sequence:
                assert offer(self.sleepy.workload, event, sequence, 0.0) is Verdict.REPEATED
        assert self.sleepy.workload == before

    @invariant()
    def no_two_attempts_run_at_once(self) -> None:
        assert len(self.pods) <= 1

    @invariant()
    def pods_run_only_where_the_log_says_that_they_may(self) -> None:
        for executor, attempt in self.pods:
            held = self.awake.workload
            assert (held.executor, held.attempt, held.live) == (executor, attempt, True)

    @invariant()
    def it_ends_at_most_once(self) -> None:
        for reader in (self.awake, self.sleepy):
            endings = [event for event in reader.counted() if isinstance(event, ENDINGS)]
            assert len(endings) <= 1
            if endings:
                assert reader.counted()[-1] is endings[0]

    @invariant()
    def attempts_follow_one_another(self) -> None:
        open_attempt = last = 0
        for event in self.awake.counted():
            match event:
                case Placed():
                    assert (open_attempt, event.attempt) == (0, last + 1)
                    open_attempt = last = event.attempt
                case Withdrawn() | Evicted():
                    assert event.attempt == open_attempt
                    open_attempt = 0
                case Claimed() | Admitted() | Running():
                    assert event.attempt == open_attempt
                case _:
                    pass

    @invariant()
    def a_reader_in_order_lacks_nothing(self) -> None:
        assert Verdict.AHEAD not in {verdict for verdict, _ in self.awake.verdicts}

    def teardown(self) -> None:
        """All readers agree in the end: on everything, or on what a tombstone holds; also readers
        that begin anywhere in what is left of an ended workload."""
        readers = [self.sleepy, *(Reader(read=at) for at in self._beginnings())]
        for reader in readers:
            reader.follow(self.log)
            assert _lasting(reader.workload) == _lasting(self.awake.workload)
        for reader in readers[:2]:
            if not self.purged:
                assert reader.workload == self.awake.workload

    def _beginnings(self) -> list[int]:
        """Sequences behind which a reader may find the log to begin."""
        story = [RecordedEvent(sequence=s, stored_at_s=0.0, event=e) for s, e in self.log]
        if not self.awake.workload.ended or stays(story):
            return [0]
        end = next(at for at, event in self.log if isinstance(event, ENDINGS))
        return [0, *(at for at, _ in self.log if at < end)]


def test_reader_that_stopped_anywhere_sees_the_ending_at_each_step_of_the_removal() -> None:
    """A stale writer's `withdrawn` was stored although `claimed` came first."""
    kinds: tuple[type[WorkloadEvent], ...] = (Submitted, Placed, Claimed, Running, Succeeded)
    log, workload = [], new()
    for at, kind in enumerate(kinds, 1):
        stale = fitting(Withdrawn, workload) if kind is Claimed else None
        log.append((10 * at, fitting(kind, workload)))
        offer(workload, log[-1][1], 10 * at, 0.0)
        if stale is not None:
            log.append((10 * at + 5, stale))
            assert offer(workload, stale, 10 * at + 5, 0.0) is Verdict.VOID
    story = [
        RecordedEvent(sequence=at, stored_at_s=0.0, event=event, void=isinstance(event, Withdrawn))
        for at, event in log[:-1]
    ]
    order = removal_order(story)
    for stopped in range(len(log)):
        for removed in range(len(order) + 1):
            reader = Reader()
            reader.follow(log[:stopped])
            reader.follow([each for each in log if each[0] not in order[:removed]])
            assert _lasting(reader.workload) == _lasting(workload), (stopped, removed)


def _lasting(workload: Workload) -> tuple[object, ...]:
    """What is left of it in its tombstone."""
    if not workload.ended:
        return (workload,)
    return (
        workload.state,
        workload.attempt,
        workload.cluster,
        workload.digest,
        workload.reason,
        workload.sequence,
    )


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
