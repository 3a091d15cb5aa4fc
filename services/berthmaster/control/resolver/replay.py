"""Repeat decisions on their recorded inputs, and compare bit for bit.

A decision names the last sequence of each input stream, its time, its settings and the engine
version. The replay folds each stream up to there, decides again and compares bytes. A report shows
the first difference by field, with recorded and present sequences of each input. Example: decision
12 saw FLEET up to 88, but the fact log starts at 95, so 12 is not repeatable.

Facts come from FLEET_LOG, which has the sequences and times of FLEET. Decisions before its start
count as not repeatable, never as equal.

Decisions of another engine version, or under other given settings, may differ. Their placements are
compared and reported as differences.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import msgspec

from berthmaster.control.resolver.core.counterfactual import (
    Alternative,
    Compared,
    Comparing,
    same_places,
)
from berthmaster.control.resolver.core.deciding.decide import decide
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import ENGINE_VERSION, Policy
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.families import (
    ARCHIVED_STORIES,
    DECISIONS,
    FLEET_FACTS,
    UNREADABLE,
    encode,
)
from berthmaster.lib.messages.fleet import REFRESH_S, FleetFact, Stamp
from berthmaster.lib.messages.placement import Decision, Saw
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.message_subjects import ControlReader, decode_event
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all, read_fleet_history
from berthmaster.lib.nats.streams import ARCHIVE, CONTROL, FOLLOWED, WORKLOADS


class Inputs(NamedTuple):
    """Everything that the streams still hold, each in stream order."""

    events: list[tuple[int, float, WorkloadEvent]]  # sequence, stored at, event
    decisions: list[tuple[int, Decision]]
    facts: list[tuple[int, float, str, FleetFact]]  # sequence, stored at, subject, fact
    controls: list[tuple[int, ControlFact]]
    facts_from: int  # first known sequence of FLEET; 1 = all
    facts_gap: int = 0  # first later sequence missing in FLEET_LOG; 0 = none missing
    # Events that froze their workloads, and undecodable decisions
    unreadable: Sequence["Unreadable"] = ()
    archived: frozenset[int] = frozenset()  # decisions only in the archive
    void: frozenset[int] = frozenset()  # events known to be void


class Unreadable(NamedTuple):
    """A message undecodable for this version; without a tenant, a decision."""

    sequence: int
    tenant: str
    id: str  # of the workload, or the decision's cell
    why: str
    stored_at_s: float = 0.0


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a decision: last sequence as recorded, and as present."""

    name: str
    seen: int
    here: int


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with a different result."""

    number: int
    field: str
    was: str
    now: str
    inputs: tuple[Input, ...] = ()
    lacking: str = ""  # recorded input that is missing; "" = none missing


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay."""

    decisions: int  # number in log and archive
    repeated: int  # number of the requested ones
    equal: int
    not_repeatable: int  # decisions with inputs no longer kept
    why_not: str = ""
    first_difference: Difference | None = None
    engine: str = ENGINE_VERSION  # engine version of the replay
    archived: int = 0  # number in the archive
    other_engines: dict[str, Compared] = {}  # version -> differences of its decisions
    otherwise: Alternative | None = None  # under other settings

    @property
    def different(self) -> int:
        """Return the number of decisions of this version that differ without a reason."""
        if self.otherwise is not None:
            return 0
        others = sum(each.decisions for each in self.other_engines.values())
        return self.repeated - self.equal - others


def replay(
    inputs: Inputs,
    cell: str,
    *,
    engine: str = ENGINE_VERSION,
    policy: Policy | None = None,
    change: Callable[[Policy], Policy] | None = None,
    first: int = 20,
    since_s: float = float("-inf"),
    last: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Repeat the decisions of a cell in order. ``policy``, or ``change`` of the one that was used:
    other settings than then, to see what would have been different; the ``first`` differences are
    listed. ``since_s``, ``last``: only those made since then, only the newest. Pure: the inputs are
    all it knows."""
    if policy is not None:
        change = lambda _: policy  # noqa: E731
    fold = _Fold(inputs, cell)
    # A decision without an engine starts a chain built by `berth recover`.
    mine = [(sequence, d) for sequence, d in inputs.decisions if d.cell == cell and d.engine]
    known_from_s = _known_from_s(inputs)
    equal = skipped = 0
    why_not = ""
    difference: Difference | None = None
    others: dict[str, Comparing] = {}
    otherwise = Comparing(first) if change is not None else None
    first_asked = 0 if last is None else max(0, len(mine) - last)
    asked = [at for at in range(first_asked, len(mine)) if mine[at][1].now_s >= since_s]
    for done, at in enumerate(asked):
        progress(done, len(asked))
        decision = mine[at][1]
        know = fold.as_of(decision.saw)
        lacking = _lacking(decision, know, known_from_s)
        if lacking:
            skipped += 1
            why_not = lacking
            continue
        know.repeat(decision)
        used = Policy.from_record(decision.settings)
        plan = decide(know, change(used) if change else used, decision.now_s, decision.decider)
        again = plan.decision if plan is not None else None
        is_equal = again is not None and encode(again) == encode(decision)
        equal += is_equal and decision.engine == engine
        comparing = otherwise
        if comparing is None and decision.engine != engine:
            comparing = others.setdefault(decision.engine, Comparing(first))
        if comparing is not None:
            comparing.take(decision, again, know)
            if otherwise is not None and difference is None and not same_places(decision, again):
                difference = _difference(decision, again, know, inputs)
        elif is_equal:
            continue
        elif 0 < inputs.facts_gap <= decision.saw.fleet:
            skipped += 1
            why_not = "FLEET_LOG lacks facts that it was made on"
        elif difference is None:
            difference = _difference(decision, again, know, inputs)
    progress(len(asked), len(asked))
    return Report(
        decisions=len(mine),
        repeated=len(asked) - skipped,
        archived=sum(sequence in inputs.archived for sequence, _ in mine),
        equal=equal,
        not_repeatable=skipped,
        why_not=why_not,
        first_difference=difference,
        engine=engine,
        other_engines={version: each.compared() for version, each in sorted(others.items())},
        otherwise=otherwise.alternative() if otherwise is not None else None,
    )


def _lacking(decision: Decision, know: Knowledge, known_from_s: float) -> str:
    """Return why a decision cannot be repeated on this knowledge; "" if it can."""
    if decision.now_s < known_from_s or decision.number != know.chain.number + 1:
        return "what it was made on is not kept any more"
    if decision.mix is None and decision.mix_pods != know.told_mix.pods:
        return "the mix of pods that it was scored for was told too long ago"
    if decision.pressure is None and decision.pressed_by != know.told_pressure.by:
        return "which nodes were scarce when it was made was told too long ago"
    if decision.lives is None and decision.lives_by != know.told_lives.by:
        return "how long jobs went on was told too long ago"
    return ""


class _Fold:
    """The knowledge of a resolver at given sequences.

    Decisions are folded at their position in the log. A new resolver may have seen less of the
    other streams than its predecessor; then everything is folded again.
    """

    def __init__(self, inputs: Inputs, cell: str) -> None:
        self._inputs = inputs
        self._cell = cell
        decisions = [(sequence, 0.0, d) for sequence, d in inputs.decisions]
        unreadable = [(each.sequence, 0.0, each) for each in inputs.unreadable]
        self._log: list[tuple[int, float, WorkloadEvent | Decision | Unreadable]] = sorted(
            [*inputs.events, *decisions, *unreadable], key=lambda entry: entry[0]
        )
        self._begin()

    def _begin(self) -> None:
        self._know = Knowledge(self._cell)
        self._newest: dict[str, Stamp] = {}
        self._at_log = self._at_fact = self._at_control = 0

    def _take_event(self, event: WorkloadEvent, sequence: int, stored_at_s: float) -> None:
        void = sequence in self._inputs.void
        self._know.take_event(event, sequence, stored_at_s, void=void)

    def _pass_over(self, unread: Unreadable) -> None:
        if unread.tenant:
            self._know.freeze(unread.tenant, unread.id, unread.sequence, unread.why)

    def as_of(self, saw: Saw) -> Knowledge:
        """The knowledge, valid until the next call."""
        know = self._know
        if (
            saw.workloads < know.workloads_sequence
            or saw.fleet < know.view.fleet_sequence
            or saw.control < know.view.control_sequence
        ):
            self._begin()
            know = self._know
        log, facts, controls = self._log, self._inputs.facts, self._inputs.controls
        while self._at_log < len(log) and log[self._at_log][0] <= saw.workloads:
            sequence, stored_at_s, entry = log[self._at_log]
            if isinstance(entry, Decision):
                know.take_decision(entry, sequence)
            elif isinstance(entry, Unreadable):
                self._pass_over(entry)
            else:
                self._take_event(entry, sequence, stored_at_s)
            self._at_log += 1
        while self._at_fact < len(facts) and facts[self._at_fact][0] <= saw.fleet:
            sequence, stored_at_s, subject, fact = facts[self._at_fact]
            if subject not in self._newest or fact.stamp >= self._newest[subject]:
                self._newest[subject] = fact.stamp
                know.take_fact(fact, sequence, stored_at_s)
            self._at_fact += 1
        while self._at_control < len(controls) and controls[self._at_control][0] <= saw.control:
            know.take_control(controls[self._at_control][1], controls[self._at_control][0])
            self._at_control += 1
        know.workloads_sequence = saw.workloads
        know.view.fleet_sequence, know.view.control_sequence = saw.fleet, saw.control
        return know


def _known_from_s(inputs: Inputs) -> float:
    """From when on all is known that decisions were made on: facts are told again within a
    refresh."""
    if inputs.facts_from > 1 and inputs.facts:
        return inputs.facts[0][1] + 1.1 * REFRESH_S
    return float("-inf")


def _difference(was: Decision, now: Decision | None, know: Knowledge, inputs: Inputs) -> Difference:
    seen = _inputs(was, know, inputs)
    lacking = ", ".join(each.name for each in seen if each.seen != each.here)
    if now is None:
        path, old, new = "", "a decision", "nothing to decide"
    else:
        before, after = msgspec.to_builtins(was), msgspec.to_builtins(now)
        path, a, b = _first_difference("", before, after)
        old, new = repr(a)[:300], repr(b)[:300]
    return Difference(number=was.number, field=path, was=old, now=new, inputs=seen, lacking=lacking)


def _inputs(was: Decision, know: Knowledge, inputs: Inputs) -> tuple[Input, ...]:
    """Return recorded and present sequences. Streams only grow."""
    log = [entry[0] for entry in inputs.events[-1:]]
    log += [entry[0] for entry in inputs.decisions[-1:]]
    log += [entry.sequence for entry in inputs.unreadable[-1:]]
    ends = {
        "workloads": max(log, default=0),
        "fleet": inputs.facts[-1][0] if inputs.facts else 0,
        "control": inputs.controls[-1][0] if inputs.controls else 0,
    }
    streams = [
        Input(name=name, seen=seen, here=min(seen, ends[name]))
        for name, seen in msgspec.structs.asdict(was.saw).items()
    ]
    return (*streams, Input(name="decision before", seen=was.after, here=know.chain.sequence))


def _first_difference(path: str, a: object, b: object) -> tuple[str, object, object]:
    """Return the first difference between two trees of plain values."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(n for n in b if n not in a)]:
            if a.get(name) != b.get(name):
                return _first_difference(f"{path}.{name}".lstrip("."), a.get(name), b.get(name))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                return _first_difference(f"{path}[{index}]", x, y)
        if len(a) != len(b):
            return f"{path} (length)", len(a), len(b)
    return path, a, b


# Reading the streams


async def read_inputs(conn: Connection) -> Inputs:
    """All that is needed, from WORKLOADS, ARCHIVE, CONTROL and the fleet's history. Raises BusError
    and msgspec.DecodeError."""
    events: dict[int, tuple[int, float, WorkloadEvent]] = {}
    decisions: dict[int, tuple[int, Decision]] = {}
    archived: dict[tuple[str, int], Decision] = {}
    facts: list[tuple[int, float, str, FleetFact]] = []
    fact_sequences: list[int] = []
    unreadable: list[Unreadable] = []
    void: set[int] = set()
    told: set[int] = set()  # by the archive
    controls: list[tuple[int, ControlFact]] = []

    def on_archived(r: Recorded) -> None:
        if subjects.is_archived_story(r.subject):
            for e in ARCHIVED_STORIES.decode(r.data).events:
                events[e.sequence] = (e.sequence, e.stored_at_s, e.event)
                if e.void and e.sequence not in told:  # of two copies the first is the whole one
                    void.add(e.sequence)
                told.add(e.sequence)
        else:
            decision = DECISIONS.decode(r.data)
            archived[decision.cell, decision.number] = decision

    def on_log(r: Recorded) -> None:
        if subjects.is_decision(r.subject):
            try:
                decisions[r.sequence] = (r.sequence, DECISIONS.decode(r.data))
            except UNREADABLE as error:
                cell = subjects.cell_of(r.subject)
                unreadable.append(Unreadable(r.sequence, "", cell, str(error)))
            return
        try:
            event, is_astray = decode_event(r.subject, r.data)
            events[r.sequence] = (r.sequence, r.stored_at_s, event)
            if is_astray:
                void.add(r.sequence)
        except UNREADABLE as error:
            where = subjects.parse_workload_event(r.subject)
            unreadable.append(
                Unreadable(r.sequence, where.tenant, where.id, str(error), r.stored_at_s)
            )

    def on_fact(r: Recorded) -> None:
        fact_sequences.append(r.sequence)
        with suppress(*UNREADABLE):  # the resolver skipped it too
            facts.append((r.sequence, r.stored_at_s, r.subject, FLEET_FACTS.decode(r.data)))

    settings = ControlReader()

    def on_control(r: Recorded) -> None:
        with suppress(*UNREADABLE):
            controls.append((r.sequence, settings.read(r)))

    # The log before the archive: a story that moves in between is then read twice, never missed.
    await read_all(conn, WORKLOADS, FOLLOWED[WORKLOADS], on_log)
    await read_all(conn, ARCHIVE, [subjects.ALL_ARCHIVE], on_archived)
    await read_fleet_history(conn, on_fact)
    await read_all(conn, CONTROL, [subjects.ALL_CONTROL], on_control)
    moved = _moved(archived, [decision for _, decision in decisions.values()])
    decisions |= moved
    return Inputs(
        archived=frozenset(moved),
        events=[events[s] for s in sorted(events)],
        decisions=[decisions[s] for s in sorted(decisions)],
        facts=facts,
        controls=controls,
        facts_from=fact_sequences[0] if fact_sequences else 1,
        facts_gap=next((b - 1 for a, b in pairwise(fact_sequences) if b > a + 1), 0),
        unreadable=unreadable,
        void=frozenset(void),
    )


def _moved(
    archived: dict[tuple[str, int], Decision], logged: Sequence[Decision]
) -> dict[int, tuple[int, Decision]]:
    """Return archived decisions missing in the log, by their former sequence. A successor names
    that sequence, and no decision without a successor is removed.
    """
    known = archived | {(each.cell, each.number): each for each in logged}
    gone = archived.keys() - {(each.cell, each.number) for each in logged}
    return {
        follower.after: (follower.after, archived[cell, number])
        for cell, number in gone
        if (follower := known.get((cell, number + 1))) is not None
    }
