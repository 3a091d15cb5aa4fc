"""An AdmissionCheck of our own, which is optional: it shows in every Workload where that shall go,
and holds it back while there is nowhere.

A check is configured by a ConfigMap in our namespace (``parameters: {apiGroup: core, kind:
ConfigMap, name: …}``; Kueue does not take the core group's real name, which is empty) whose key
``selector`` holds a selector over clusters' labels. MultiKueue makes copies only when every other
check is Ready, and every eviction sets all back to Pending: so ours is passed anew in every
attempt, and only ever our own item is written. Retry, by which Kueue ends an attempt, is set for
what a decision has told to go (leaving.py); a person or another tool may set it too. Checks of ours
with any other parameters are the admission check controller's, and left alone here.
"""

from berthmaster.hub.multikueue.core.deciding.shortlist import HubShortlist, kept_place
from berthmaster.hub.multikueue.core.instructions import Instruction, SetCheckActive
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import ADMISSION_CHECKS
from berthmaster.lib.kube.selector import Selector
from berthmaster.lib.kueue.multikueue import AdmissionCheck
from berthmaster.lib.kueue.names import PENDING

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
