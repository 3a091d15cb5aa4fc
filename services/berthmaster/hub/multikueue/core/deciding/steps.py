"""The next step of one workload: at most one, from the present state of log and hub.

``next_step`` checks the table below from top to bottom and returns the first step that applies.
Example: a Workload is on the bus, holds quota and has no nomination. The step is ``Place``. After
``placed`` is in the log the step is ``Claim``, and after ``claimed`` it is ``Nominated`` for w1.

Rules of this file:

- Steps need no memory but Memo, whose loss is harmless: a restarted process takes the same step.
- Kueue decides where a job runs: the open attempt follows ``clusterName``. An attempt elsewhere
  ends first ("<cluster> admitted it first").
- An attempt is a nomination: placed, claimed, then nominated. There is one at a time
  (writes.py). A move clears the nomination, ends the attempt, waits until the copies are
  gone and starts again. The end of Kueue's own attempt ends this one.
- A nomination found on the hub, such as one of Kueue's own dispatcher before the mode changed, is
  adopted. Several nominations are cleared first.
- A step that the contract forbids is not taken, and a wait of Kueue is reported once.

Steps, in the order of the checks::

    on another hub            nothing: this hub has no information
    not on the bus            submitted
    over on the bus           stop jobs that still run under a cancelled name
    gone from the hub         cancelled
    finished, or its Job was  (placed, claimed) succeeded or failed
      deleted after its end
    cancel requested          stop; cancelled once inactive
    eviction decided          a Berthmaster check says Retry, until Kueue has ended the attempt
    held, or released         (eviction decided, evicted) deactivated, or activated
    Kueue named a cluster     (evicted elsewhere, placed, claimed) admitted, running
    Kueue released the quota  evicted
    nominated by others too   left alone for a while
    admitted, not nominated   nominated there again
    nominated                 adopted; cleared, if several, or to move on
    copies of the last one    awaited
    may be nominated          placed, claimed, nominated; the next best after patience
"""

from typing import NamedTuple

from berthmaster.hub.multikueue.core.deciding.checks import NO_CHECK, own_check
from berthmaster.hub.multikueue.core.deciding.job_manifest import unmakeable
from berthmaster.hub.multikueue.core.deciding.traps import busy
from berthmaster.hub.multikueue.core.deciding.writes import lingering, strayed
from berthmaster.hub.multikueue.core.known.avoided import NAME_TAKEN, RAN_OUT, taken_words
from berthmaster.hub.multikueue.core.known.hub import ClusterRef
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
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

UNKNOWN = "unknown"  # cluster of a finished job, if no party names it
NOT_SAID = "the hub does not say in which cluster it ran"
GONE = "it was deleted on the hub"
JOB_GONE = "its Job had ended when it was deleted on the hub"
AWAITS_REPORT = "it has ended; the cluster that ran it has still to report so"
REPORT_S = 10.0  # after the hub has shown the end, if several clusters may have run it
LATE = " (it began and ended while the log could not be written)"
OWNER_GONE = "OwnerNotFound"  # Kueue's reason for the end of a Workload whose Job was deleted
DOUBTFUL_STATES = (State.ADMITTED, State.RUNNING)


class Submit(NamedTuple):
    """Make the Workload known on the bus."""


class Place(NamedTuple):
    """Place the Workload: in the cluster that Kueue chose (``at``), or in the best untried one."""

    at: str = ""  # fleet name
    why: str = ""


class Claim(NamedTuple):
    """The placement is ours to carry out."""


class Evict(NamedTuple):
    """End the attempt and requeue the workload."""

    reason: str
    blameless: bool = False  # no evidence against the cluster


class Admit(NamedTuple):
    """The cluster's Kueue admitted it."""


class Run(NamedTuple):
    pass


class End(NamedTuple):
    state: State
    reason: str


class Nominated(NamedTuple):
    """Nominate the open attempt's cluster."""

    ref: ClusterRef


class Clear(NamedTuple):
    """Clear the present nomination."""

    reason: str


class MoveOn(NamedTuple):
    """Nominated for long, or in vain: if there is another candidate, it comes next."""

    reason: str
    blameless: bool = False  # no evidence against the cluster


class Stop(NamedTuple):
    pass


class Back(NamedTuple):
    """Let Kueue end its attempt, by a Berthmaster check with Retry."""

    check: str
    reason: str


class Hold(NamedTuple):
    """Deactivate the Workload until its release."""

    who: str


class LetGoOn(NamedTuple):
    """Activate a released Workload."""


class Make(NamedTuple):
    """Create the Job on the hub."""


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
    if hub.holds("Finished") or view.ended_job is not None:
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
    """Follow an eviction decision: Kueue ends the attempt. None: Kueue is doing so, or
    has done so.
    """
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
    """Follow a hold or a release. None: neither applies, or Kueue must still end its attempt."""
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
        return Clear(words)  # left over from an ended attempt
    if not may_be_switched_off(hub):
        return Wait(f"{words}, once Kueue has ended its attempt")
    return Hold(bus.hold.who)


def _begin_again(bus: Workload, hub: KueueWorkload, reason: str) -> Step:
    """Restart a Workload that was deactivated so that Kueue removes a copy without a job."""
    if hub.holds(QUOTA_RESERVED):
        return Wait(f"Kueue is ending its attempt: {reason}")
    if bus.state is State.PLACED:
        return Claim()
    return Evict(reason, blameless=True) if bus.state in HELD else LetGoOn()


def _taken_back(bus: Workload, words: str = "") -> Evict:
    """End an attempt that Kueue ended, possibly by an eviction decision."""
    reason = "; ".join(part for part in (bus.leaving, words) if part)
    return Evict(reason, blameless=bool(bus.leaving))


def elsewhere_words(home: str) -> str:
    """Return why this reconciler leaves the workload alone."""
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
    """Return the step for a workload without a Workload object on the hub."""
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
    ending = _ending(view, hub)
    if ending is None:
        gone = GONE + (LATE if memo.is_late else "")
        return End(State.CANCELLED, "cancelled by request" if bus.cancel_requested else gone)
    good, said = ending
    if now_s < memo.finished_since_s + REPORT_S and _awaits_report(view, memo):
        return Wait(AWAITS_REPORT, memo.finished_since_s + REPORT_S)
    message = said[:400] + (LATE if memo.is_late else "")
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
    """Return whether another cluster may have run a job to its end, with a report still to come.

    ``clusterName`` alone proves nothing:

    - Two copies are admitted within a second. Kueue may start the job in w1, name w1, delete the
      job there and start it in w2. The name stays.
    - Kueue takes the end of any copy that it reaches. w1 was away while its nomination was cleared,
      w2 was nominated, and w1 comes back with an ended job.
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
    if memo.ran_in:  # the end may precede Kueue's note of the admission
        return memo.ran_in if named in ("", memo.ran_in) else UNKNOWN
    if named:
        return UNKNOWN if memo.is_unproven else named
    # Nominations cleared by an earlier process run are unknown here.
    is_unproven = memo.is_unproven or (memo.cleared_at_s is None and bus.attempt > 1)
    if hub.nominated:
        only = len(hub.nominated) == 1 and not is_unproven
        return _ref_of(view, hub.nominated[0]) if only else UNKNOWN
    if is_unproven and bus.attempt:
        return UNKNOWN
    return bus.cluster if bus.state in HELD else ""


def _ending(view: WorkloadView, hub: KueueWorkload) -> tuple[bool, str] | None:
    """Return whether the job succeeded, and the words for that; None for a job that was deleted
    before its end. With a TTL of 0 a Job may be gone before Kueue has seen its end.
    """
    finished, gone = hub.condition("Finished"), view.ended_job
    if finished is None or not finished.true or finished.reason == OWNER_GONE:
        return (gone.succeeded, JOB_GONE) if gone is not None else None
    good = finished.reason in ("Succeeded", "JobFinished") and not _job_failed(view.job or gone)
    return good, finished.message or finished.reason


def _job_failed(job: HubJob | None) -> bool:
    conditions = (job.status.conditions if job is not None and job.status else None) or ()
    return any(c.type == "Failed" and c.true for c in conditions)


def _cancelling(view: WorkloadView, policy: HubPolicy) -> Step:
    """Follow a cancel request. Legal only while claimed; earlier the gateway cancels alone."""
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
    """Make the open attempt follow the cluster that Kueue chose."""
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
    """Nominate a cluster again whose copy was admitted while its nomination was cleared: Kueue can
    choose only a nominated cluster.
    """
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
    # No admission happens while the hub is away, or before its manager reached the Workload.
    begin_s = max(since_s, bus.claimed_at_s, view.heard_since_s, memo.patience_since_s)
    late_s = begin_s + policy.patience_s
    if now_s >= late_s:
        words = _remote_words(view.copy)
        if busy(view.copy):  # Kueue there has answered
            return MoveOn(f"no quota within {policy.patience_s:g} s: {words}")
        if view.alive_at_s.get(bus.cluster, float("-inf")) < now_s - policy.patience_s / 2:
            return MoveOn(f"{bus.cluster} is silent: {words}")  # no evidence against its Kueue
        if view.copy is None and not memo.is_refused:  # the hub's Kueue seems to hold it back
            return MoveOn(f"no copy heard of for {policy.patience_s:g} s", blameless=True)
        return MoveOn(f"{RAN_OUT} {policy.patience_s:g} s: {words}")
    return Wait(f"nominated to {bus.cluster}: {_remote_words(view.copy)}", late_s)


def _remote_words(copy: CopyReport | None) -> str:
    if copy is None:
        return "its cluster says nothing of a copy"
    return copy.message or ("admitted there" if copy.admitted else "waits there")
