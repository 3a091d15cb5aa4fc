"""An optional AdmissionCheck of our own: it shows in every Workload where that shall go, holds it
back while there is nowhere, and has Kueue evict it where operators request that.

A check is configured by a ConfigMap in our namespace (``parameters: {apiGroup: core, kind:
ConfigMap, name: …}``; Kueue does not take the core group's real name, which is empty) whose key
``selector`` holds a selector over clusters' labels. MultiKueue makes copies only when every other
check is Ready, and every eviction sets all back to Pending: so ours is passed anew in every
attempt, and only ever our own item is written. Retry, by which Kueue ends an attempt, is set for
what a decision evicts; a person or another tool may set it too. Checks of ours
with any other parameters are the admission check controller's, and left alone here.

**Evictions.** Evictions of hub Workloads that operators request: holds, evictions, moves and
drains.

``decide_eviction`` returns the ``Eviction`` that is carried out now, or why the Workload stays.
lib/engine/queueing/eviction.py has the rules; the search for free capacity is the hub's own.

Example: an operator requests that Workload train moves to rome. While rome is full it stays. Once
rome has capacity, the decision holds a ``MoveOrder`` to rome, and Kueue ends the attempt.

Rules of this file:

- Requests are in the log (a hold, a move) or among what operators set (a drain). Here they become
  orders of a decision. The next step sets a check of ours to Retry (checks.py), and Kueue ends the
  attempt by its own protocol.
- The free capacity of a move or a drain counts as taken from then on (known/on_the_way.py).
- Without a check of ours in its ClusterQueue a Workload stays, and ``why`` says so.
"""

from typing import Final

from berthmaster.hub.multikueue.core.deciding.shortlist import (
    HubShortlist,
    kept_place,
    shortlist_for,
)
from berthmaster.hub.multikueue.core.instructions import Instruction, SetCheckActive
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.engine.queueing.eviction import (
    Eviction,
    Relocation,
    Stay,
    drain_eviction,
    drain_words,
    last_moment_s,
    requested_eviction,
)
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import ADMISSION_CHECKS
from berthmaster.lib.kube.selector import Selector
from berthmaster.lib.kueue.multikueue import AdmissionCheck
from berthmaster.lib.kueue.names import CHECK_CONTROLLER, PENDING
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import HELD

CONFIG_MAP = "ConfigMap"
CORE = ("core", "")
SELECTOR_KEY = "selector"
MAX_MESSAGE_CHARS = 1000
AGAIN_S = 10.0


def parameters_of(check: AdmissionCheck) -> tuple[str, str]:
    """Return the name of the ConfigMap, and the error."""
    parameters = check.spec.parameters
    if parameters is None or not parameters.name:
        return "", "has no parameters: {apiGroup: core, kind: ConfigMap, name: …} is needed"
    if parameters.kind != CONFIG_MAP or (parameters.api_group or "") not in CORE:
        kind = f"{parameters.api_group or ''}/{parameters.kind}".strip("/")
        return "", f"its parameters name a {kind}: it must be a ConfigMap of apiGroup core"
    return parameters.name, ""


def waiting(view: WorkloadView) -> str | None:
    """Return the Berthmaster check that the Workload waits for, if it may pass now."""
    hub, rules = view.hub, view.rules
    if hub is None or rules is None or not rules.own_checks:
        return None
    if not hub.holds("QuotaReserved") or hub.holds("Evicted") or hub.holds("Finished"):
        return None
    if hub.deleting:
        return None
    for name in rules.own_checks:
        state = hub.check(name)
        if state is not None and state.state == PENDING:
            return name
    return None


def words(view: WorkloadView, shortlist: HubShortlist) -> str:
    """Return the message of a passed check; "" while it must not pass."""
    if view.hub is not None and view.hub.cluster_name:
        return f"{view.hub.cluster_name} has it"
    if not shortlist.candidates:
        return ""
    best = kept_place(shortlist, view) or shortlist.candidates[0]
    out = "; ".join(f"{name}: {why}" for name, why in sorted(shortlist.filtered.items()))
    message = f"best of {len(shortlist.candidates)}: {best.ref.name} ({best.words})"
    return (message + (f"; left out: {out}" if out else ""))[:MAX_MESSAGE_CHARS]


class Checks:
    """The condition Active of each check of ours."""

    def __init__(self) -> None:
        self.moved = True
        self._under_way: dict[str, str] = {}
        self._not_before_s: dict[str, float] = {}
        self._written: dict[str, tuple[bool, str, str]] = {}
        self._told: dict[str, str] = {}
        self._number = 0

    def on_answer(self, ref: str, now_s: float) -> None:
        """A condition was written, or not."""
        check = self._under_way.pop(ref, None)
        if check is not None:
            self._not_before_s[check] = now_s + AGAIN_S  # the watch brings the written object back
            self.moved = True

    def look(self, hub: Hub, now_s: float) -> list[Instruction]:
        if not self.moved:
            return []
        self.moved = False
        out: list[Instruction] = []
        for name, check in sorted(hub.checks.items()):
            if not check.for_dispatcher:
                continue
            found = hub.parameters.get(name)
            if found is None or name in self._under_way.values():
                continue
            good = isinstance(found, Selector)
            reason = "Active" if good else "BadParameters"
            message = f"chooses among clusters with labels {found}" if good else f"{found}"
            if isinstance(found, Selector) and not found.requirements:
                message = "chooses among all clusters"
            have = check.condition("Active")
            wanted = (good, reason, message)
            if have is not None and (have.true, have.reason, have.message) == wanted:
                continue
            early = now_s < self._not_before_s.get(name, 0.0)
            if early and self._written.get(name) == wanted:
                self.moved = True
                continue
            self._written[name] = wanted
            self._number += 1
            ref = f"check/{self._number}"
            self._under_way[ref] = name
            out.append(SetCheckActive(ref, name, good, reason, message))
            if not good and self._told.get(name) != message:
                self._told[name] = message
                out.append(KubeEvent(ADMISSION_CHECKS, check.metadata, True, reason, message))
        return out


RESTART_S: Final = 60.0  # time from a restart to useful work
NO_CHECK: Final = (
    f"it stays: its ClusterQueue has no AdmissionCheck of {CHECK_CONTROLLER}, by which Kueue is "
    "told to move it; add one, or have Kueue evict it"
)


def own_check(hub: KueueWorkload, rules: Rules | None) -> str:
    """Return the Berthmaster check that evicts a Workload; "" without one."""
    names = rules.own_checks if rules is not None else ()
    return next((name for name in names if hub.check(name) is not None), "")


def decide_eviction(
    know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float
) -> Eviction | Stay | None:
    """Return the eviction of a Workload, or why it stays; None without a request, or once the log
    has the eviction.
    """
    bus, hub = view.bus, view.hub
    if bus is None or hub is None or bus.state not in HELD or bus.leaving or bus.cancel_requested:
        return None
    drain = know.view.drains.get((bus.cluster, ""))
    if bus.wish is None and drain is None and bus.hold is None:
        return None
    if policy.mode != "dispatch":
        return Stay(f"it stays: in mode {policy.mode} nothing is moved on the hub")
    if not own_check(hub, view.rules):
        return Stay(NO_CHECK)
    found = requested_eviction(bus, now_s)
    if isinstance(found, Relocation):
        where = found.to or "another cluster"
        why = f"{found.who} wants it in {where}; it goes when there is room for all of it"
        found = _placed(know, view, found, policy, now_s) or Stay(why)
    if drain is None or isinstance(found, Eviction):
        return found
    drained, words = drain_eviction(bus, drain, now_s, RESTART_S), drain_words(drain)
    match drained:
        case Relocation():
            stays = Stay(
                f"{words}; it waits for room elsewhere", last_moment_s(bus, drain.drain_by_s)
            )
            return _placed(know, view, drained, policy, now_s) or stays
        case Stay(why, until_s):
            return Stay(f"{words}; {why}", until_s)
    return drained


def _placed(
    know: BusState, view: WorkloadView, move: Relocation, policy: HubPolicy, now_s: float
) -> Eviction | None:
    """Return the eviction into the best other cluster with free capacity now; None without one."""
    assert view.bus is not None
    for candidate in shortlist_for(know, view, policy, now_s).candidates:
        name = candidate.ref.name
        fits = candidate.tier == FITS and not candidate.last
        if fits and name != view.bus.cluster and move.to in ("", name):
            return move.into(name)
    return None
