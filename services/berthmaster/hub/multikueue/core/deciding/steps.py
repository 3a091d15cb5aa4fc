"""What is next for one workload: at most one step, from what log and hub say now.

Rules of this file:

- Nothing is remembered between looks but for comfort (see Memo): whoever is killed between two
  steps does the same next step after its start.
- Kueue's word is followed: where ``clusterName`` says it is, there the open attempt is. An attempt
  elsewhere ends first ("<cluster> admitted it first").
- An attempt is a nomination: placed, claimed, then nominated. There is one at a time, see
  one_at_a_time.py: to move is to clear it, to end the attempt, to wait until the copies are gone,
  and to begin anew. When Kueue's own attempt ends, so does ours.
- A nomination that is found, such as one of Kueue's own dispatcher before the mode was switched, is
  taken over; where several are, they are cleared first.
- A step that the contract forbids is not taken; what Kueue waits for is told, not repeated.

Steps, in the order of the questions::

    on another hub            nothing: what is not here says nothing of what is there
    not on the bus            submitted
    over on the bus           stop what still runs under a cancelled name
    gone from the hub         cancelled
    finished                  (placed, claimed) succeeded or failed
    to be cancelled           stop it; cancelled when it is off
    told to go                a check of ours says Retry, until Kueue has ended the attempt
    held, or released         (told to go, evicted) switched off, or on again
    Kueue named a cluster     (evicted elsewhere, placed, claimed) admitted, running
    Kueue took it back        evicted
    nominated by others too   left alone for a while
    admitted, not nominated   nominated there again
    nominated                 taken over; cleared, if it is several, or to move on
    copies of the last one    waited for
    may be nominated          placed, claimed, nominated; the next best after patience
"""

from typing import NamedTuple

from berthmaster.hub.multikueue.core.deciding.hub_evictions import NO_CHECK, own_check
from berthmaster.hub.multikueue.core.deciding.job_manifest import unmakeable
from berthmaster.hub.multikueue.core.deciding.one_at_a_time import lingering, strayed
from berthmaster.hub.multikueue.core.deciding.traps import busy
from berthmaster.hub.multikueue.core.known.attention import RAN_OUT
from berthmaster.hub.multikueue.core.known.hub import ClusterRef
from berthmaster.hub.multikueue.core.known.names_taken import NAME_TAKEN, taken_words
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.settings import HubPolicy
from berthmaster.lib.engine.queueing.eviction import said_by
from berthmaster.lib.kueue.contract import (
    eviction_words,
    forbidden,
    held_back,
    may_be_switched_off,
    waits_for_quota,
)
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import EVICTED, HELD_ANNOTATION, QUOTA_RESERVED, RETRY
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.fleet import CopyReport

UNKNOWN = "unknown"  # where something ran that has ended well, and nobody says where
NOT_SAID = "the hub does not say in which cluster it ran"
GONE = "it was deleted on the hub"
AWAITS_REPORT = "it has ended; the cluster that ran it has still to report so"
REPORT_S = 10.0  # after the hub has shown the end, if several clusters may have run it
LATE = " (it began and ended while the log could not be written)"
OWNER_GONE = "OwnerNotFound"  # Kueue's reason for the end of a Workload whose Job was deleted
DOUBTFUL_STATES = (State.ADMITTED, State.RUNNING)


class Submit(NamedTuple):
    """Make it known on the bus."""


class Place(NamedTuple):
    """Give it a place: where Kueue has it (``at``), or the best that was not tried yet."""

    at: str = ""  # fleet name
    why: str = ""


class Claim(NamedTuple):
    """The placement is ours to carry out."""


class Evict(NamedTuple):
    """End the attempt; it waits again."""

    reason: str
    blameless: bool = False  # it says nothing of the cluster


class Admit(NamedTuple):
    """The cluster's Kueue let it in."""


class Run(NamedTuple):
    """Its pods run."""


class End(NamedTuple):
    """It is over."""

    state: State
    reason: str


class Nominated(NamedTuple):
    """Nominate the open attempt's cluster."""

    ref: ClusterRef


class Clear(NamedTuple):
    """Take back the nomination that is there."""

    reason: str


class MoveOn(NamedTuple):
    """Nominated for long, or in vain: if there is another candidate, it comes next."""

    reason: str
    blameless: bool = False  # it says nothing of the cluster


class Stop(NamedTuple):
    """Make Kueue stop it."""


class Back(NamedTuple):
    """Have Kueue end its attempt, by a check of ours that says Retry."""

    check: str
    reason: str


class Hold(NamedTuple):
    """Switch it off until it is released."""

    who: str


class LetGoOn(NamedTuple):
    """It was held, and is released: switch it on."""


class Make(NamedTuple):
    """Create its Job on the hub."""


class Wait(NamedTuple):
    """Nothing to do until something changes, or until then."""

    why: str
    until_s: float = float("inf")


Step = (
    Submit
    | Place
    | Claim
    | Evict
    | Admit
    | Run
    | End
    | Nominated
    | Clear
    | MoveOn
    | Stop
    | Back
    | Hold
    | LetGoOn
    | Make
    | Wait
)


def next_step(view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float) -> Step:
    bus, hub = view.bus, view.hub
    if view.elsewhere:
        return Wait(elsewhere_words(view.elsewhere))
    if bus is None:
        return _of_stranger(view, policy)
    if hub is None:
        return _without_object(view, memo, policy)
    if hub.holds("Finished"):
        return _finished(view, memo, now_s)
    if bus.cancel_requested:
        return _cancelling(view, policy)
    if bus.leaving and (told := _sent_back(view, policy)) is not None:
        return told
    if (kept := _held(view, policy)) is not None:
        return kept
    if hub.cluster_name:
        return _named(view, memo)
    if bus.state in DOUBTFUL_STATES:
        return _taken_back(bus, eviction_words(hub))
    return _unnamed(view, memo, policy, now_s)


def _sent_back(view: WorkloadView, policy: HubPolicy) -> Step | None:
    """A decision has told it to go: Kueue ends its attempt. None: it does so, or has."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    if bus.state not in HELD or not hub.holds(QUOTA_RESERVED) or hub.holds(EVICTED):
        return None
    if not hub.clusters:
        return None if bus.state in DOUBTFUL_STATES else _taken_back(bus)
    if hub.deleting or policy.mode != "dispatch":
        return None
    check = own_check(hub, view.rules)
    state = hub.check(check)
    if state is None:
        return Wait(NO_CHECK)
    if state.state == RETRY:
        return Wait(f"Kueue is ending its attempt: {bus.leaving}")
    return Back(check, bus.leaving)


def _held(view: WorkloadView, policy: HubPolicy) -> Step | None:
    """Somebody holds it, or did; None: nobody, or Kueue has still to end its attempt."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    held_by = hub.metadata.annotations.get(HELD_ANNOTATION)
    if hub.deleting or (bus.hold is None and held_by is None):
        return None
    if bus.hold is None:
        if hub.active or policy.mode != "dispatch":
            return None
        if held_by is not None and held_by.startswith(NAME_TAKEN):
            return _begin_again(bus, hub, held_by)
        return LetGoOn()
    if bus.state is not State.QUEUED or hub.cluster_name:
        return None  # where Kueue has begun it all the same, the log follows first
    words = f"held by {said_by(bus.hold)}"
    if policy.mode != "dispatch":
        return Wait(f"{words}; in mode {policy.mode} nothing is switched off on the hub")
    if not hub.active:
        return Wait(words)
    if hub.nominated and view.rules is not None and not forbidden(hub, view.rules.check):
        return Clear(words)  # left over from an attempt that is over
    if not may_be_switched_off(hub):
        return Wait(f"{words}, once Kueue has ended its attempt")
    return Hold(bus.hold.who)


def _begin_again(bus: Workload, hub: KueueWorkload, reason: str) -> Step:
    """It was switched off so that Kueue removes a copy that can have no job."""
    if hub.holds(QUOTA_RESERVED):
        return Wait(f"Kueue is ending its attempt: {reason}")
    if bus.state is State.PLACED:
        return Claim()
    return Evict(reason, blameless=True) if bus.state in HELD else LetGoOn()


def _taken_back(bus: Workload, words: str = "") -> Evict:
    """Its attempt is over, be it because it was told to go."""
    reason = "; ".join(part for part in (bus.leaving, words) if part)
    return Evict(reason, blameless=bool(bus.leaving))


def elsewhere_words(home: str) -> str:
    """Why nothing is done about it here."""
    return (
        f"it stands on another hub, whose id is {home}: this reconciler leaves it alone; point one "
        "there again, or start this one with that id in --former-hubs if that hub is no more"
    )


def _of_stranger(view: WorkloadView, policy: HubPolicy) -> Step:
    """Not open on the bus: new, or over."""
    hub = view.hub
    if hub is None:
        return Wait("nothing is known of it")
    if view.ended is not None:
        alive = not hub.holds("Finished") and not hub.deleting and hub.active
        if view.ended is State.CANCELLED and alive and policy.mode == "dispatch":
            return Stop()
        return Wait(f"it is {view.ended.value}")
    if view.ours:
        return Wait("the log is about to bring its request")
    if view.rules is None:
        return Wait("not ours")
    if (hub.holds("Finished") or hub.deleting) and not view.is_unwritten:
        return Wait("it was over before anything was known of it")
    return Submit()


def _without_object(view: WorkloadView, memo: Memo, policy: HubPolicy) -> Step:
    """On the bus, and the hub has no Workload of it."""
    bus = view.bus
    assert bus is not None
    if bus.origin is not None:
        return End(State.CANCELLED, GONE + (LATE if memo.is_late else ""))
    if view.job is not None:
        if bus.cancel_requested and policy.mode == "dispatch":
            return Stop()
        return Wait("Kueue has not made a Workload of its Job yet")
    if bus.cancel_requested or bus.attempt or view.job_was_seen:
        return End(State.CANCELLED, GONE if not bus.cancel_requested else "cancelled by request")
    if why := unmakeable(bus) or memo.unmakeable:
        return End(State.FAILED, why)
    if bus.hold is not None:
        return Wait(f"held by {said_by(bus.hold)}")
    if bus.depends:
        return Wait(f"for {bus.waited_for}; then its Job is made on the hub")
    if policy.mode != "dispatch":
        return Wait(f"in mode {policy.mode} no Job is made on the hub for it")
    return Make()


def _ref_of(view: WorkloadView, hub_name: str) -> str:
    """The fleet's name of a MultiKueueCluster."""
    for ref in view.rules.clusters if view.rules is not None else ():
        if ref.hub_name == hub_name:
            return ref.name
    return hub_name


def _finished(view: WorkloadView, memo: Memo, now_s: float) -> Step:
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    if memo.finished_since_s is None:
        memo.finished_since_s = now_s
    finished = hub.condition("Finished")
    assert finished is not None
    gone = GONE + (LATE if memo.is_late else "")
    if finished.reason == OWNER_GONE:
        return End(State.CANCELLED, "cancelled by request" if bus.cancel_requested else gone)
    good = finished.reason in ("Succeeded", "JobFinished") and not _job_failed(view.job)
    if now_s < memo.finished_since_s + REPORT_S and _awaits_report(view, memo):
        return Wait(AWAITS_REPORT, memo.finished_since_s + REPORT_S)
    message = (finished.message or finished.reason)[:400] + (LATE if memo.is_late else "")
    where = _ran_in(view, memo)
    if where == UNKNOWN:
        among = ", ".join(_ref_of(view, name) for name in hub.nominated)
        several = len(hub.nominated) > 1
        words = f"in one of {among}: the hub does not say in which" if several else NOT_SAID
        message = f"{message} ({words})"[:500]
    if good or where:
        if bus.state is State.QUEUED and (good or (bus.attempt and bus.cluster != where)):
            return Place(at=where or UNKNOWN, why="it has run there")
        if bus.state is State.PLACED:
            return Claim()
        if bus.state in HELD and bus.cluster != (where or UNKNOWN):
            return Evict(f"{where or UNKNOWN} ran it", blameless=True)
    elif bus.state is State.PLACED:
        return Claim()
    if good:
        return End(State.SUCCEEDED, message)
    return End(State.CANCELLED if bus.cancel_requested else State.FAILED, message)


def _awaits_report(view: WorkloadView, memo: Memo) -> bool:
    """Return whether another cluster than the named one may have run something that has ended, and
    the report that settles this has still to come. ``clusterName`` alone proves nothing:

    - Of copies that were admitted within a second Kueue may start the job in w1, name w1, delete
      the job there and start it in w2. The name stays.
    - Kueue takes the end of any copy that it reaches. w1 was away while its nomination was taken
      back, w2 was named, and w1 comes back with an ended job.
    """
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    named = _ref_of(view, hub.cluster_name) if hub.cluster_name else ""
    if memo.ended_in and named in ("", *memo.ended_in):
        return False
    is_elsewhere = bool(named and memo.ran_in) and memo.ran_in != named
    return is_elsewhere or bus.attempt > 1 or bool(memo.tried) or len(hub.nominated) > 1


def _ran_in(view: WorkloadView, memo: Memo) -> str:
    """Return where something ran that has ended: UNKNOWN if nothing proves it, "" if it may have
    run nowhere. For example, w3 was nominated and taken back, and no copy was ever reported: with
    w1 nominated at the end, w3 may have run it all the same."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    named = _ref_of(view, hub.cluster_name) if hub.cluster_name else ""
    if memo.ended_in:
        if len(memo.ended_in) == 1:
            return next(iter(memo.ended_in))
        return named if named in memo.ended_in else UNKNOWN
    if memo.ran_in:  # it may have ended before Kueue could note where it was admitted
        return memo.ran_in if named in ("", memo.ran_in) else UNKNOWN
    if named:
        return UNKNOWN if memo.is_unproven else named
    # What another life of this process took back is not known here.
    is_unproven = memo.is_unproven or (memo.cleared_at_s is None and bus.attempt > 1)
    if hub.nominated:
        only = len(hub.nominated) == 1 and not is_unproven
        return _ref_of(view, hub.nominated[0]) if only else UNKNOWN
    if is_unproven and bus.attempt:
        return UNKNOWN
    return bus.cluster if bus.state in HELD else ""


def _job_failed(job: HubJob | None) -> bool:
    conditions = (job.status.conditions if job is not None and job.status else None) or ()
    return any(c.type == "Failed" and c.true for c in conditions)


def _cancelling(view: WorkloadView, policy: HubPolicy) -> Step:
    """A person's wish: legal only while claimed; before that the gateway ends it by itself."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    off = not hub.active and not hub.holds("QuotaReserved") and not hub.cluster_name
    if off or bus.state is State.QUEUED:
        return End(State.CANCELLED, "cancelled by request")
    if bus.state is State.PLACED:
        return Claim()
    if view.ours:
        if hub.deleting or view.job is None:
            return Wait("its Job is being deleted")
    elif not hub.active:
        return Wait("Kueue is stopping it")
    if policy.mode != "dispatch":
        return Wait(f"in mode {policy.mode} nothing is stopped on the hub: delete its job there")
    return Stop()


def _named(view: WorkloadView, memo: Memo) -> Step:
    """Kueue has chosen: what the open attempt says must follow."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    where = _ref_of(view, hub.cluster_name)
    if bus.state is State.QUEUED:
        return Place(at=where, why="Kueue sent it there")
    if bus.state is State.PLACED:
        return Claim()
    if bus.cluster != where:
        fought = memo.contest.words
        return Evict(f"{where} admitted it{f'; {fought}' if fought else ' first'}", blameless=True)
    memo.contest.over()
    check = hub.check(view.rules.check) if view.rules is not None else None
    ready = hub.holds("Admitted") or (check is not None and check.state == "Ready")
    if bus.state is State.CLAIMED:
        return Admit() if ready else Wait("its cluster is about to admit it")
    if bus.state is State.ADMITTED:
        runs = view.job.runs if view.job is not None else hub.owner[0] != "Job"
        return Run() if runs else Wait("its pods are about to start")
    return Wait("it runs")


def _unnamed(view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float) -> Step:
    """No cluster has it: waiting for quota, for a nomination, or for admission."""
    bus, hub, rules = view.bus, view.hub, view.rules
    assert bus is not None
    assert hub is not None
    held = bus.state in HELD
    if rules is None:
        why = "its queue is not MultiKueue's any more"
        return Evict(why) if held else Claim() if bus.state is State.PLACED else Wait(why)
    why = forbidden(hub, rules.check)
    if why:
        memo.kueue_took_it_back()
        if bus.state is State.PLACED:
            return Claim()
        if held:
            return _taken_back(
                bus, f"not admitted before Kueue took it back: {eviction_words(hub)}"
            )
        return Wait(waits_for_quota(hub) or why)
    holding = held_back(hub, rules.check, rules.own_checks)
    if holding and bus.state is State.QUEUED:
        memo.ready_at_s = None
        return Wait(holding)
    if memo.ready_at_s is None:
        memo.ready_at_s = now_s
    if policy.mode != "dispatch":
        if bus.state is State.PLACED:
            return Claim()
        if held:
            return Evict(f"in mode {policy.mode} the hub's Kueue chooses")
        return Wait("the hub's Kueue chooses its cluster")
    if bus.state is State.PLACED:
        return Claim()
    if now_s < memo.contest.until_s:
        return Wait(memo.contest.words, memo.contest.until_s)
    if memo.trouble and now_s < memo.trouble_until_s:
        return Wait(memo.trouble, memo.trouble_until_s)
    if (copy := strayed(view, policy, now_s)) is not None:
        return _brought_back(view, copy)
    if len(hub.nominated) > 1:
        if view.admitted_copy is not None:
            return Wait(f"{view.admitted_copy.cluster} has admitted it, and the hub does not know")
        return Clear(f"{', '.join(hub.nominated)} are nominated, and one at a time may be")
    if bus.state is State.QUEUED:
        return _choosing(view, memo, policy, now_s)
    return _nominating(view, memo, policy, now_s)


def _brought_back(view: WorkloadView, copy: CopyReport) -> Step:
    """Its copy was admitted while its nomination was taken back: Kueue can name that cluster only
    if it is nominated again."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    why = f"{copy.cluster} has admitted it, and is not nominated any more"
    if hub.nominated:
        return Clear(why)
    if bus.state is State.QUEUED:
        return Place(at=copy.cluster, why=why)
    if bus.cluster != copy.cluster:
        return Evict(why, blameless=True)
    refs = view.rules.clusters if view.rules is not None else ()
    ref = next((r for r in refs if r.name == bus.cluster), None)
    return Nominated(ref) if ref is not None else Wait(why)


def _choosing(view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float) -> Step:
    """Not placed: what was nominated before counts, else the best, once nothing is in the way."""
    hub, rules = view.hub, view.rules
    assert hub is not None
    assert rules is not None
    memo.leaving = ""
    if hub.nominated:
        found = next((r for r in rules.clusters if r.hub_name == hub.nominated[0]), None)
        if found is None:
            return Clear(f"{hub.nominated[0]} is nominated and not in MultiKueueConfig")
        return Place(at=found.name, why="it was nominated there already")
    waits = lingering(view, memo, policy, now_s)
    return Wait(waits.why, waits.until_s) if waits is not None else Place()


def _nominating(view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float) -> Step:
    """Claimed: nominated, to be nominated, or nominated for too long."""
    bus, hub, rules = view.bus, view.hub, view.rules
    assert bus is not None
    assert hub is not None
    assert rules is not None
    ref = next((r for r in rules.clusters if r.name == bus.cluster), None)
    if ref is None:
        return Evict(f"{bus.cluster} is not in MultiKueueConfig {rules.config} any more")
    if hub.nominated != (ref.hub_name,):
        if hub.nominated and memo.contest.times:
            return Clear(f"{hub.nominated[0]} is nominated, and {bus.cluster} was decided for")
        if hub.nominated:
            return Evict(f"{hub.nominated[0]} was nominated meanwhile", blameless=True)
        if memo.leaving:
            return Evict(memo.leaving, memo.leaves_blameless)
        waits = lingering(view, memo, policy, now_s, bus.cluster)
        return Wait(waits.why, waits.until_s) if waits is not None else Nominated(ref)
    memo.leaving = ""
    memo.copy_was_seen = memo.copy_was_seen or view.copy is not None
    since_s = memo.nominated.setdefault(ref.hub_name, now_s)
    if view.copy is not None and view.copy.blocked_by:
        return Wait(taken_words(bus.cluster, view.copy.blocked_by))
    if view.copy is not None and view.copy.admitted:
        return Wait(f"{bus.cluster} has admitted it, and the hub does not know yet")
    # While the hub is away nobody can admit it, nor before its manager has come to it.
    begin_s = max(since_s, bus.claimed_at_s, view.heard_since_s, memo.patience_since_s)
    late_s = begin_s + policy.patience_s
    if now_s >= late_s:
        words = _remote_words(view.copy)
        if busy(view.copy):  # Kueue there has answered
            return MoveOn(f"no quota within {policy.patience_s:g} s: {words}")
        if view.alive_at_s.get(bus.cluster, float("-inf")) < now_s - policy.patience_s / 2:
            return MoveOn(f"{bus.cluster} is silent: {words}")  # which says nothing of its Kueue
        if view.copy is None and not memo.is_refused:  # the hub's Kueue holds it back, as it seems
            return MoveOn(f"no copy heard of for {policy.patience_s:g} s", blameless=True)
        return MoveOn(f"{RAN_OUT} {policy.patience_s:g} s: {words}")
    return Wait(f"nominated to {bus.cluster}: {_remote_words(view.copy)}", late_s)


def _remote_words(copy: CopyReport | None) -> str:
    if copy is None:
        return "its cluster says nothing of a copy"
    return copy.message or ("admitted there" if copy.admitted else "waits there")
