"""Looks at everything after every step and holds it against the invariants of the design.

It trusts no service's own account: it folds the log by itself as it is stored, looks into the
clusters for pods, and remembers what people asked for and were told.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Final, NamedTuple

from berthmaster.audit.core import WHOLE, Auditor
from berthmaster.audit.core import Finding as AuditFinding
from berthmaster.audit.promises import Gpu
from berthmaster.emulator.cluster import EmulatedCluster
from berthmaster.emulator.world import ALIVE, Group, Phase
from berthmaster.executor.cluster_protocol import Attempt, CreatePods
from berthmaster.executor.instructions import Freeze
from berthmaster.lifecycle.faults import OWN
from berthmaster.lifecycle.fold import Verdict, is_given_up, judged_story, offer
from berthmaster.lifecycle.parts import division_of
from berthmaster.lifecycle.sizes import counts_of, least, most
from berthmaster.lifecycle.states import HELD, Ending, State
from berthmaster.lifecycle.workload import Key, Workload, key
from berthmaster.messages.control import ClusterLost, LogAccepted
from berthmaster.messages.placement import Decision
from berthmaster.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Claimed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Placed,
    Recovered,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from berthmaster.resolver.deciding.make_room import WORDS
from berthmaster.resolver.deciding.rebalance import REBALANCED
from tests.simulation.bus import Message, recorded
from tests.simulation.clockwork import START_S, Clockwork
from tests.simulation.deciders import POLICY

STORY_STEPS: Final = 60
MOST_MESSAGES: Final = 5000  # of a world's log; most have some two hundred
MESSAGES_AN_HOUR: Final = 3600  # beside those, while executors are away that are tried in vain
PROMISED: Final = "no GPU is promised twice"
# What an auditor finds in a log that has lost something; promises are looked at by ourselves then.
OF_DAMAGE: Final = ("decision chain", "none is lost", "no forged event", PROMISED)
# And of a divided job, if the log has lost something of it or of one of its parts.
OF_PARTS: Final = ("parts belong to a job", "parts start together", "a job ends after its parts")
MOST_MOVES: Final = 12  # of one workload in a world: as many as there are jobs of better right
MAKES_ROOM: Final = (*WORDS.values(), REBALANCED)
UNBORN: Final = "have events and no submission"
# Why a cluster or its executor may end an attempt by itself.
_OF_THE_CLUSTER: Final = ("OutOf", "GpuUnhealthy", "GpuLost", "NodeNotReady", "InvalidPod")


class Broken(Exception):
    """An invariant does not hold."""


class Finding(NamedTuple):
    """What must not be."""

    rule: str
    what: str
    at_s: float


def _promises(work: Workload) -> Iterator[tuple[Gpu, int]]:
    sets = {pods.name: pods for pods in work.request.pod_sets} if work.request is not None else {}
    for binding in work.pods:
        pods = sets.get(binding.pod.rpartition("-")[0])
        if pods is not None:
            milli = binding.charged_milli or pods.gpu_milli
            yield from (((work.cluster, binding.node, index), milli) for index in binding.gpus)


def _is_another(event: WorkloadEvent, lie: WorkloadEvent) -> bool:
    """Whether an event names another's attempt than a lie does, or a later one."""
    at, lied_at = getattr(event, "attempt", 0), getattr(lie, "attempt", 0)
    whose, lied_whose = getattr(event, "cluster", ""), getattr(lie, "cluster", "")
    return at > lied_at or (at == lied_at and whose != lied_whose)


def _job_of(name: str) -> str:
    """The job of which it is a part, or itself."""
    return name.partition("--")[0]


class Standing(NamedTuple):
    """How a workload stands, as far as an ending of its attempt is to be judged by it."""

    state: State
    attempt: int
    cluster: str
    over_at_s: float | None  # when its deadline has passed
    leaving: str  # why it is to make room


def _standing(work: Workload) -> Standing:
    deadline_s = work.request.deadline_s if work.request is not None else None
    over_at_s = None if deadline_s is None else work.claimed_at_s + deadline_s
    return Standing(work.state, work.attempt, work.cluster, over_at_s, work.leaving)


class Judge:
    """Everything that must hold at any time; ``settled`` in the world is what must hold at last."""

    def __init__(self, clock: Clockwork) -> None:
        self.clock = clock
        self.clusters: dict[str, EmulatedCluster] = {}
        self.workloads: dict[Key, Workload] = {}
        self.verdicts: dict[Verdict, int] = {}
        self.claims: dict[Attempt, str] = {}
        self.doubtful: set[Attempt] = set()
        self.cancels: set[Key] = set()  # a person asked for it
        self.accepted: dict[Key, int] = {}  # a person was told so, with this sequence
        self.lost: dict[str, list[float]] = {}  # cluster -> when a person declared it lost
        self.resolver_deadlines = 0
        self.recovered = 0
        self.auditor = Auditor(holds=lambda _: True)  # nothing is ever lost here
        self.resizes: dict[str, int] = {}
        self.moves: dict[Key, int] = {}  # how often it was told to make room
        self.ordered: dict[Key, set[str]] = {}  # why it was told to end: what is lost, too
        self.moved_for: dict[Key, int] = {}  # how often others were told to move for it
        self.lies: set[int] = set()  # sequences of events that are none
        self.stories: Callable[[Key], list[Message]] = lambda _: []  # what the log has of one
        self.log: Callable[[], list[Message]] = list
        self.harmed = False  # the log has lost something
        self.pending = False  # and nobody has accepted that yet
        self.gone: set[int] = set()  # numbers below the log's end that it has lost
        self.frozen: set[Key] = set()  # workloads that have lost what their events build on
        self.forgotten: set[Key] = set()  # of which the log has lost something
        # As they are for those who had read that, until a person accepts that it is lost.
        self.remembered: dict[Key, Workload] = {}
        self.known_lost: set[Key] = set()  # and somebody else knew that they were open
        self.told_lost: set[str] = set()  # told by name to whoever accepted it
        self.lost_attempts: set[Attempt] = set()  # placed or claimed by events that are lost
        self.orphans: set[Attempt] = set()  # alive, and the log has lost their placement or claim
        # Alive and forgotten, in clusters that did not answer soon enough after the acceptance.
        self.unspoken: set[Attempt] = set()
        self.recent: deque[tuple[float, str, object]] = deque(maxlen=STORY_STEPS)

    def find(self, rule: str, what: str) -> None:
        """Something must not be."""
        raise Broken(Finding(rule, what, self.clock.now_s))

    def note(self, who: str, what: object) -> None:
        self.recent.append((self.clock.now_s, who, what))

    def watch(self, name: str, cluster: EmulatedCluster) -> None:
        self.clusters[name] = cluster

    # The log

    def on_stored(self, message: Message) -> None:
        """One more message of the log or of the operators' settings."""
        body = message.body
        self.note("bus", body)
        hours = (self.clock.now_s - START_S) / 3600.0
        if message.sequence > MOST_MESSAGES + MESSAGES_AN_HOUR * hours:
            self.find("nobody goes round in circles", f"the log has {message.sequence} messages")
        if isinstance(body, Decision):
            self.auditor.on_decision(body, message.sequence)
            self._check_rebalances(body)
        elif isinstance(body, LogAccepted):
            self.on_accepted()
            self._take_as_lost(body)
        elif isinstance(body, ClusterLost):
            if body.lost:
                self.lost.setdefault(body.cluster, []).append(self.clock.now_s)
        elif hasattr(body, "after"):
            self._on_event(message)
        findings = [f for f in self.auditor.report().findings if not self._is_excused(f)]
        if findings:
            self.find(findings[0].rule, f"{findings[0].where}: {findings[0].what}")

    def _is_excused(self, finding: AuditFinding) -> bool:
        """Whether it is a lie that was found, or that one came before its job was submitted; or
        what is to be found in a log that has lost something."""
        if self.harmed and (finding.rule in OF_DAMAGE or finding.where in self.forgotten):
            return True
        if finding.rule in OF_PARTS and any(
            _job_of(name) == _job_of(finding.where) for name in self.forgotten
        ):
            return True
        return finding.sequence in self.lies or (bool(self.lies) and finding.what.endswith(UNBORN))

    def _on_event(self, message: Message) -> None:
        event: WorkloadEvent = message.body
        self.auditor.on_event(event, message.sequence, message.stored_at_s)
        name = key(event.tenant, event.id)
        work = self.workloads.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        standing = _standing(work)
        was_frozen = name in self.frozen
        if isinstance(event, EvictionRequested) and message.sequence not in self.lies:
            self.ordered.setdefault(name, set()).add(event.reason)
        at = message.sequence, message.stored_at_s
        known: Standing | None = None
        if self.harmed:
            if message.sequence in self.lies and self._is_gone(event.after):
                self._forget(name)
            known = self._offer_remembered(name, event, *at)
            verdict = self._judge(name)
        else:
            verdict = offer(work, event, *at)
        if verdict is Verdict.MISSED:  # whoever has seen all knows that there is no gap
            verdict = offer(work, event, *at, judged=Verdict.VOID)
        if (
            message.sequence in self.lies
            and verdict is Verdict.COUNTED
            and not self._is_gone(event.after)
            and not (was_frozen and not self._says_whose(self.stories(name), event))
        ):
            self.find("no lie counts", str(event))
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        if self.harmed and isinstance(event, Claimed) and message.sequence not in self.lies:
            # Whoever has read what the log has lost knows better than what is left says.
            self.claims[Attempt(event.tenant, event.id, event.attempt)] = event.executor
        is_lost = event.by.startswith("resolver") and self.lost.get(getattr(event, "cluster", ""))
        if is_lost and isinstance(event, Evicted | Withdrawn) and "lost" in event.reason:
            # A person says that its cluster is; also where the log has lost what this builds on.
            self.doubtful.add(Attempt(event.tenant, event.id, event.attempt))
        if verdict is not Verdict.COUNTED:
            return
        if message.sequence in self.lies:  # behind what is lost an ending is believed
            self.forgotten.add(name)
            self.orphans = {one for one in self.orphans if key(one.tenant, one.id) != name}
            return
        is_of_it = standing.state in HELD and getattr(event, "attempt", 0) == standing.attempt
        # Who has not read of the claim that is lost withdraws by what the log has left, and whoever
        # is asked to cancel it does so at once.
        is_unclaimed = isinstance(event, Withdrawn) or (
            isinstance(event, Cancelled) and event.by.startswith("gateway")
        )
        is_of_it |= is_unclaimed and standing.state is State.PLACED
        is_of_it |= isinstance(event, Cancelled) and standing.state is State.QUEUED  # none is there
        # A part that a decider ends has no place, as far as that has read.
        is_of_it &= not (isinstance(event, Cancelled) and event.by.startswith("resolver"))
        # Nor is it frozen for who has not noticed yet that anything is lost.
        was_frozen &= not (is_unclaimed and standing.state is State.PLACED and self.pending)
        if known is not None and (was_frozen or not is_of_it):
            # Whoever says so has read what is lost: by what is left nobody can tell how it stands,
            # or not so.
            standing = known
        self._on_counted(name, event, standing)

    def _on_counted(self, name: Key, event: WorkloadEvent, standing: Standing) -> None:
        """An event that has an effect. ``standing``: how its workload stood before it."""
        work = self.workloads.get(name, Workload(tenant=event.tenant, id=event.id))
        match event:
            case Claimed():
                attempt = Attempt(event.tenant, event.id, event.attempt)
                self.claims[attempt] = event.executor
                self.orphans.discard(attempt)  # placed anew where it is
                self.lost_attempts.discard(attempt)
            case Recovered():
                attempt = Attempt(event.tenant, event.id, event.attempt)
                self.claims[attempt] = event.executor
                self.orphans.discard(attempt)
                self.lost_attempts.discard(attempt)
                self.recovered += 1
            case Running():
                self._check_running(event)
            case Placed() if self.harmed:
                self._check_promises(name)
            case Withdrawn():
                # Its decider had not read of the claim that is lost: it is placed anew.
                self.orphans.discard(Attempt(event.tenant, event.id, event.attempt))
                if standing.state is not State.PLACED:
                    self.find("a claimed workload never moves by itself", str(event))
            case CancelRequested():
                if name not in self.cancels:
                    self.find("only people cancel", str(event))
            case EvictionRequested():
                self._check_order(event, work)
            case ResizeRequested() | Resized():
                self._check_size(event, work)
            case Evicted() | Failed() | Cancelled() | Succeeded():
                self._check_ending(event, standing)
                if work.ended and Attempt(event.tenant, event.id, event.attempt) in self.doubtful:
                    # It ran on where a person had said that all was lost: the job is over by that.
                    self.orphans = {o for o in self.orphans if key(o.tenant, o.id) != name}

    # Damage

    def _forget(self, name: Key) -> None:
        """The log has lost something of it, or may have: a lie of it names what is lost."""
        if self.pending and name not in self.forgotten and name in self.workloads:
            self.remembered[name] = deepcopy(self.workloads[name])
        self.forgotten.add(name)

    def _offer_remembered(
        self, name: Key, event: WorkloadEvent, sequence: int, stored_at_s: float
    ) -> Standing | None:
        """How a workload stood before this event for those who have read what the log has lost of
        it. None: to them the event is about nothing that is open. It may have lost its race, and
        count all the same in what is left."""
        work = self.remembered.get(name)
        if work is None:
            return None
        of_it = getattr(event, "attempt", 0) == work.attempt
        is_open = of_it and (work.live or isinstance(event, Cancelled))
        standing = _standing(work)
        if offer(work, event, sequence, stored_at_s) is Verdict.MISSED:
            offer(work, event, sequence, stored_at_s, judged=Verdict.VOID)
        return standing if is_open else None

    def on_accepted(self) -> None:
        """All begin anew with what is left of the log."""
        self.pending = False
        self.remembered = {}

    def on_spoken(self, silent: set[str], unanswered: set[Attempt]) -> None:
        """The time is over in which executors bring back what runs. ``silent``: those who could
        not answer all of that time; whoever comes later finds what the log says by then. So does
        what is ``unanswered``: on slow ways an answer may take as long."""
        there = {name: self.clusters[name].world.groups.keys() for name in silent}
        late = self.orphans & unanswered.union(*there.values())
        self.unspoken |= late
        self.orphans -= late

    def _check_promises(self, placed: Key) -> None:
        """What is placed where others are of whom the log has lost nothing."""
        whole = [
            work
            for name, work in self.workloads.items()
            if work.live and (name == placed or name not in self.forgotten)
        ]
        promised: Counter[Gpu] = Counter()
        for work in whole:
            for gpu, milli in _promises(work):
                promised[gpu] += milli
        for gpu, _ in _promises(self.workloads[placed]):
            if promised[gpu] > WHOLE:
                self.find(PROMISED, f"{gpu}: {promised[gpu]} milli, the last to {placed}")

    def _take_as_lost(self, accepted: LogAccepted) -> None:
        """What of a torn commit was accepted as lost is lost to all readers, though its number was
        given anew before anybody had looked; what names it may have been about anything."""
        anew = {at for gap in accepted.missing for at in range(gap.first, gap.last + 1)} - self.gone
        self.gone |= anew
        for name in self.workloads:
            story = self.stories(name)
            if {message.body.after for message in story} & anew - {m.sequence for m in story}:
                self._forget(name)
                self._judge(name)

    def on_damage(self, lost: list[Message], known: set[Key]) -> None:
        """The log is what is left of it. ``known``: what was open, as somebody has kept it."""
        self.harmed = self.pending = True
        names: set[Key] = set()
        lied_of: set[Key] = set()
        for message in lost:
            if isinstance(message.body, WorkloadEvent):
                name = key(message.body.tenant, message.body.id)
                names.add(name)
                if message.sequence in self.lies:
                    lied_of.add(name)
        self.lies -= {message.sequence for message in lost}
        there = {message.sequence for message in self.log()}
        self.gone = set(range(1, max(there, default=0))) - there  # what was behind comes anew
        names |= {
            key(message.body.tenant, message.body.id)
            for message in self.log()
            if message.sequence in self.lies and self._is_gone(message.body.after)
        }  # they name what is lost, which might have been theirs
        for name in names & self.workloads.keys() - self.frozen:
            if self.workloads[name].state is not State.NEW:
                self.remembered[name] = self.workloads[name]
        self.forgotten |= names
        open_ = {name for name, work in self.workloads.items() if not work.ended}
        lied_of |= {name for name in names if self.was_lied_of(name)}
        # Who ended meanwhile, and has lost that now, is known to nobody any more.
        self.known_lost = (self.known_lost & known) | ((names & open_ & known) - lied_of)
        attempts = {
            Attempt(m.body.tenant, m.body.id, m.body.attempt)
            for m in lost
            if isinstance(m.body, Placed | Claimed | Recovered)
        }
        self.lost_attempts |= attempts
        for cluster in self.clusters.values():
            for group in cluster.world.groups.values():
                if group.attempt in attempts and self.alive(group):
                    self.orphans.add(group.attempt)
        self.auditor = Auditor(holds=lambda sequence: not self._is_gone(sequence))
        self.workloads = {}
        self.frozen = set()
        for message in self.log():
            if isinstance(message.body, Decision):
                self.auditor.on_decision(message.body, message.sequence)
            else:
                name = key(message.body.tenant, message.body.id)
                self.auditor.on_event(message.body, message.sequence, message.stored_at_s)
                if name not in self.workloads:
                    self._judge(name)
        for name in lied_of & self.workloads.keys():  # a claim may have been void by the lie alone
            work = self.workloads[name]
            if work.state in HELD:
                self.claims[Attempt(work.tenant, work.id, work.attempt)] = work.executor

    def was_lied_of(self, name: Key) -> bool:
        """Whether nobody can tell any more what is true of it: a lie in its story names what the
        log has lost, or ends it where nothing is left that says whose it was."""
        story = self.stories(name)
        lies = [message for message in story if message.sequence in self.lies]
        if any(self._is_gone(lie.body.after) for lie in lies):
            return True
        endings = [lie.body for lie in lies if isinstance(lie.body, Ending)]
        return any(not self._says_whose(story, each) for each in endings)

    def _says_whose(self, story: Sequence[Message], lie: WorkloadEvent) -> bool:
        """Whether what is left says that a stranger's ending is none: nothing is lost, nor seems to
        be since a lie names a number that is; or it has the attempt, or one after it, in another's
        hands: a placement that follows on something that is left too, or the word of him whom that
        names, or, in a story that begins, of somebody who builds on what is lost. (As the fold has
        it: what follows on nothing may be a lie.)"""
        left = {message.sequence: message.body for message in story}
        is_begun, has_gap, before = False, False, 0
        for message in story:
            event = message.body
            is_gone = self._is_gone(event.after) and event.after > before
            has_gap |= is_gone
            if message.sequence not in self.lies:
                is_begun |= isinstance(event, Submitted)
                is_told = False
                if isinstance(event, Placed | Recovered | Divided):
                    is_told = event.after in left
                elif isinstance(event, Claimed | Admitted | Running | Evicted):
                    of_him = isinstance(left.get(event.after), Placed)
                    is_told = of_him or (is_begun and is_gone)
                if is_told and _is_another(event, lie):
                    return True
            before = message.sequence
        return is_begun and not has_gap

    def _judge(self, name: Key) -> Verdict:
        """Of the last event of a story, as the log has it now."""
        tenant, _, workload_id = name.partition("/")
        story = recorded(self.stories(name))
        work, verdicts = judged_story(tenant, workload_id, story, self._is_gone)
        self.workloads[name] = work
        if Verdict.MISSED in verdicts:
            self.frozen.add(name)
            return Verdict.VOID
        self.frozen.discard(name)
        return verdicts[-1]

    def _is_gone(self, sequence: int) -> bool:
        return sequence in self.gone

    def on_frozen(self, step: Freeze) -> None:
        if not self.harmed:
            self.find("nothing is unreadable here", str(step))

    def on_delete(self, cluster: str, attempt: Attempt, why: str) -> None:
        """An executor removes the pods of an attempt."""
        group = self.clusters[cluster].world.groups.get(attempt)
        if key(attempt.tenant, attempt.id) in self.cancels:
            return  # a person wanted that
        if self.was_lied_of(key(attempt.tenant, attempt.id)) or self.lost.get(cluster):
            return  # a person says that it is gone, or nobody can tell what is true of it
        if attempt in self.orphans and group is not None and self.alive(group):
            self.find("what a damaged log forgot goes on running", f"{attempt} on {cluster}: {why}")

    def _check_rebalances(self, decision: Decision) -> None:
        """It pays, all who move have room, and nobody moves for one who has moved for another."""
        rooms = {key(r.tenant, r.id): r for r in decision.reservations or () if r.owed}
        for each in decision.rebalances:
            for_, pays = key(each.tenant, each.id), each.gain_gpu_s > 0.0
            self.moved_for[for_] = self.moved_for.get(for_, 0) + 1
            kept = for_ in rooms and rooms[for_].cluster == each.cluster
            if not (pays and kept and 0 < len(each.moves) <= POLICY.rebalance_moves):
                self.find("others move for one only if that pays", str(each))
            for move in each.moves:
                name = key(move.tenant, move.id)
                room = rooms.get(name)
                if room is None or not room.moving or room.cluster != move.to:
                    self.find("who is moved has room elsewhere", f"{move} of {each}")
            if not self.harmed and self.workloads[for_].moves:
                self.find("nobody is moved for one whom it would move back", str(each))

    def _check_order(self, event: EvictionRequested, work: Workload) -> None:
        """Only what may be moved is, and nobody is moved back and forth."""
        request = work.request
        makes_room = event.reason in MAKES_ROOM  # else a person says so
        may_go = request is not None and (request.preemptible or not makes_room)
        if not may_go or work.target.via != "direct":
            self.find("only what may be ended makes room", f"{event}; {work}")
        if work.cancel_requested:
            self.find("who is cancelled makes no room", f"{event}; {work}")
        self.moves[work.key] = self.moves.get(work.key, 0) + makes_room
        if self.moves[work.key] > MOST_MOVES:
            self.find("nobody is moved back and forth", f"{self.moves[work.key]} times: {event}")

    def _check_size(self, event: ResizeRequested | Resized, work: Workload) -> None:
        """Between the least and the most; what is told is what is there."""
        asked = work.wished
        counts = counts_of(event.pods)
        if asked is None or any(
            not least(pods) <= counts.get(pods.name, 0) <= most(pods) for pods in asked.pod_sets
        ):
            self.find("never below the least nor above the most", f"{event}; {work}")
        group = self._group(event.cluster, Attempt(event.tenant, event.id, event.attempt))
        if isinstance(event, Resized) and group is not None and self.alive(group):
            there = {seat.pod for seat in group.made.seats}
            if there != {each.pod for each in event.pods}:
                self.find("resized says which pods there are", f"{event}; {sorted(there)}")
        self.resizes[type(event).__name__] = self.resizes.get(type(event).__name__, 0) + 1

    def _check_running(self, event: Running) -> None:
        group = self._group(event.cluster, Attempt(event.tenant, event.id, event.attempt))
        if group is None and key(event.tenant, event.id) in self.forgotten:
            return  # sent before the log lost its end, and stored late: it fits once more
        if group is None:
            self.find("running says where the pods are", f"no pods at all: {event}")

    def _group(self, cluster: str, attempt: Attempt) -> Group | None:
        return self.clusters[cluster].world.groups.get(attempt)

    def _check_ending(
        self, event: Evicted | Failed | Cancelled | Succeeded, standing: Standing
    ) -> None:
        name = key(event.tenant, event.id)
        request = self.workloads[name].request
        is_part = division_of(event.id) is not None
        waits = standing.state is State.QUEUED or name in self.forgotten  # perhaps once more
        by_decider = is_part and waits and event.by.startswith("resolver")
        if isinstance(event, Cancelled) and name not in self.cancels and not by_decider:
            self.find("only people cancel", str(event))
        if standing.state is State.DIVIDED:  # the auditor looks at its parts
            if not event.by.startswith("resolver") and not is_given_up(event):
                self.find("only a decider ends a divided job", str(event))
            return
        attempt = Attempt(event.tenant, event.id, event.attempt)
        if standing.state not in HELD:
            # Its decider may have read that it was divided before the log lost that.
            of_divided = event.by.startswith("resolver") and (
                request is None or request.divide is not None
            )
            # Or it was claimed, and the log has lost that.
            known = of_divided or self.claims.get(attempt) == event.by
            known |= event.by.startswith("resolver") and attempt in self.claims
            known &= name in self.forgotten
            if not isinstance(event, Cancelled) and not known:
                self.find("what is not claimed does not end by itself", str(event))
            return
        group = self._group(standing.cluster, attempt)
        if is_given_up(event):
            if group is not None and self.alive(group):
                self.find("what runs is not given up", f"{event}; {group}")
            return
        if event.by.startswith("resolver"):
            self._check_resolver_ending(event, group, attempt, standing)
            return
        if event.by != self.claims[attempt]:
            self.find("only the claimant ends it", str(event))
        if group is not None and self.alive(group):
            self.find("an ending comes after the last pod", f"{event}; {group}")
        if isinstance(event, Succeeded):
            if group is None and name in self.forgotten:
                return  # sent before the log lost that it had ended: it fits once more
            if group is None or group.phase is not Phase.COMPLETED:
                self.find("what succeeded was completed", f"{event}; {group}")
        elif not isinstance(event, Cancelled):
            self._check_reason(event, group, standing)

    def _check_reason(
        self, event: Evicted | Failed, group: Group | None, standing: Standing
    ) -> None:
        work = self.workloads[key(event.tenant, event.id)]
        if isinstance(event, Evicted) and event.blameless:
            is_lost = work.key in self.forgotten and event.reason in self.ordered.get(work.key, ())
            if event.reason != standing.leaving and not is_lost:
                self.find("who makes room was told to", f"{event}; {work}")
            return
        reason = event.reason.rpartition("at last: ")[2]
        if work.key in self.forgotten and (
            reason in self.ordered.get(work.key, ()) or work.key in self.cancels
        ):
            return  # the order, or the wish, is among what the log has lost
        if reason.startswith(_OF_THE_CLUSTER):
            return
        if reason == "deadline" and standing.over_at_s is not None:
            return
        by_itself = isinstance(event, Failed) or event.fault in OWN  # the latter is tried again
        if by_itself and group is not None and group.made.fails:
            return
        ran = standing.state is State.RUNNING and work.key not in self.forgotten
        if reason.startswith("not all pods ran") and not ran:
            return  # its executor stood still, and heard of its own limit before it heard of them
        self.find("no job ends because of silence", f"{event}; {group}")

    def _check_resolver_ending(
        self,
        event: Evicted | Failed | Cancelled | Succeeded,
        group: Group | None,
        attempt: Attempt,
        standing: Standing,
    ) -> None:
        """Only where a person said so, or where the job's own deadline has stopped its pods."""
        over_at_s = standing.over_at_s
        if "lost" in event.reason and self.lost.get(standing.cluster):
            self.doubtful.add(attempt)
        elif over_at_s is None or self.clock.now_s < over_at_s:
            self.find("no job ends because of silence", f"{event}; {group}")
        elif group is not None and self.alive(group):
            self.find("a deadline is enforced beside the pods", f"{event}; {group}")
        else:
            self.resolver_deadlines += 1

    # The pods

    def alive(self, group: Group) -> bool:
        """Whether its pods hold something now: a cluster whose process is down is behind."""
        made = group.made
        if made.expires_s is not None and self.clock.now_s >= made.expires_s:
            return False
        if group.phase not in ALIVE:
            return bool(group.held)
        return self.clock.now_s < made.ends_s or (made.fails and len(made.seats) > 1)

    def on_create(self, cluster: str, order: CreatePods, now_s: float) -> None:
        """An executor is about to create pods. ``now_s``: by its clock."""
        attempt = order.attempt
        if attempt not in self.lost_attempts and self.claims.get(attempt) != order.executor:
            self.find("nothing is created before it is claimed", str(order))
        late_s = now_s - (now_s if order.asked_at_s is None else order.asked_at_s)
        if attempt in self.doubtful or (
            order.stop_after_s is not None and order.stop_after_s <= late_s
        ):
            return  # the pods will not run
        for name, other in self.clusters.items():
            for group in other.world.groups.values():
                mine = (group.attempt.tenant, group.attempt.id) == attempt[:2]
                unsure = group.attempt in self.doubtful or group.attempt in self.unspoken
                if not mine or unsure or not self.alive(group):
                    continue
                if (name, group.attempt) != (cluster, attempt):
                    self.find("none runs twice at once", f"{order}; {group} runs on {name}")
        name = key(attempt.tenant, attempt.id)
        if attempt in self.lost_attempts:  # asked for before the log lost that it was claimed
            there = self.workloads.get(name)
            is_over = there is not None and there.state is State.QUEUED
            if there is None or not (is_over and there.attempt == attempt.number):
                self.orphans.add(attempt)
            return
        if name in self.forgotten:
            return  # whoever asks for it has read what is lost
        work = self.workloads[name]
        if work.attempt != attempt.number or work.state not in HELD:
            self.find("what ended is not created", f"{order}; {work}")
        if work.held_back:
            self.find("a gang starts when all of its parts are claimed", f"{order}; {work}")
