"""Answers to ``why`` for workloads of a hub: from hub, worker and ranking.

Kueue's order and quota are quoted from Kueue, never guessed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from berthmaster.hub.multikueue.core.deciding import blind
from berthmaster.hub.multikueue.core.deciding.checks import decide_eviction
from berthmaster.hub.multikueue.core.deciding.committing import KEPT_FOR_IT
from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for
from berthmaster.hub.multikueue.core.deciding.steps import Wait, elsewhere_words, next_step
from berthmaster.hub.multikueue.core.deciding.traps import KUEUE_SILENT, SILENT_CURE, Trap
from berthmaster.hub.multikueue.core.deciding.writes import lingering
from berthmaster.hub.multikueue.core.known.avoided import NAME_TAKEN
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.requests import read_request
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleetview.fleet_problems import all_unlisted
from berthmaster.lib.engine.queueing.eviction import Stay, said_by
from berthmaster.lib.kueue.contract import (
    UNRESERVED,
    deactivated,
    forbidden,
    held_back,
    waits_for_quota,
)
from berthmaster.lib.kueue.jobs import early_words
from berthmaster.lib.kueue.names import HELD_ANNOTATION
from berthmaster.lib.lifecycle.fold import frozen_summary
from berthmaster.lib.lifecycle.states import HELD, LIVE, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.placement import Choice, Decision


class About(NamedTuple):
    """Inputs of an answer."""

    view: WorkloadView
    memo: Memo
    trap: Trap | None
    know: BusState
    policy: HubPolicy
    decisions: Mapping[int, Decision]
    hub_trouble: str  # why nothing new is heard of the hub, or ""
    kueue_silence: str  # why the hub's Kueue counts as silent, or ""
    now_s: float


def why(about: About) -> WhyReply:
    """Return the answer for an open workload."""
    know, view = about.know, about.view
    bus = view.bus
    assert bus is not None
    if (frozen := know.frozen.get(view.name)) is not None:
        summary = frozen_summary(frozen, f"{bus.tenant}/{bus.id}")
        return WhyReply(tenant=bus.tenant, id=bus.id, summary=summary)
    shortlist = shortlist_for(know, view, about.policy, about.now_s)
    decision = about.decisions.get(bus.decision)
    choice = _choice_of(decision, bus) if bus.live and decision is not None else None
    filtered = choice.filtered if choice is not None else shortlist.filtered
    return WhyReply(
        tenant=bus.tenant,
        id=bus.id,
        state=bus.state.value,  # type: ignore[arg-type] # NEW has no events, so never here
        summary=_summary(about, view, bus),
        waiting=sum(w.state is State.QUEUED for w in know.open.values()),
        filtered=filtered,
        reasons=dict(Counter(_group(text) for text in filtered.values()).most_common()),
        hints=_hints(about, view),
        choice=choice,
        decision=bus.decision if bus.live else 0,
        decided_at_s=decision.now_s if choice is not None and decision is not None else 0.0,
    )


def _summary(about: About, view: WorkloadView, bus: Workload) -> str:
    parts = [_standing(about, view, bus)]
    if bus.hold is not None:
        parts.append(f"held by {said_by(bus.hold)}")
    if bus.leaving and bus.state in HELD:
        parts.append(f"it was told to go: {bus.leaving}")
    elif going := about.know.going_for(view.name):
        jobs = "1 job was told" if len(going) == 1 else f"{len(going)} jobs were told"
        parts.append(f"{jobs} to make room for it there")
    elif isinstance(asked := decide_eviction(about.know, view, about.policy, about.now_s), Stay):
        parts.append(asked.why)
    if about.kueue_silence and bus.state not in (State.ADMITTED, State.RUNNING):
        parts.append(about.kueue_silence)
    if about.trap is not None and about.trap.kind != KUEUE_SILENT:
        parts.append(f"stuck: {about.trap.words}")
    if about.memo.blind and bus.state in LIVE:
        parts.append(blind.WORDS)
    if about.memo.contest.times:
        parts.append(about.memo.contest.words)
    if about.memo.trouble:
        parts.append(f"trouble: {about.memo.trouble}")
    if bus.reason and not (bus.state is State.QUEUED and bus.reason in parts[0]):
        parts.append(f"last attempt: {bus.reason}")
    if about.hub_trouble:
        parts.append(f"what the hub shows may be old: {about.hub_trouble}")
    return "; ".join(parts)


def _standing(about: About, view: WorkloadView, bus: Workload) -> str:
    hub, rules = view.hub, view.rules
    if view.elsewhere:
        return f"{bus.state}: {elsewhere_words(view.elsewhere)}"
    if hub is None:
        step = next_step(view, about.memo, about.policy, about.now_s)
        return f"waits: {step.why}" if isinstance(step, Wait) else "its Job is about to be made"
    if bus.state in (State.ADMITTED, State.RUNNING):
        silence = _silence(about, [bus.cluster])
        return f"{bus.state} on {bus.cluster}, sent there by {_sender(about, bus)}{silence}"
    if hub.cluster_name:
        return f"on {hub.cluster_name}, about to be told so"
    if rules is None:
        return "waits: its queue does not lead to MultiKueue"
    if rules.problem:
        return f"waits: {rules.problem}"
    if (taken := hub.metadata.annotations.get(HELD_ANNOTATION, "")).startswith(NAME_TAKEN):
        return f"waits: Kueue is ending its attempt: {taken}"
    if off := deactivated(hub):
        return f"deactivated: {off}"
    why_not = forbidden(hub, rules.check)
    if why_not == UNRESERVED and rules.stopped:
        return f"waits: {rules.stopped}"
    if why_not == UNRESERVED:
        return f"waits for quota on the hub: {waits_for_quota(hub)}"
    if why_not:
        return f"waits: {why_not}"
    names = sorted(view.nominated)
    if not names and (held := held_back(hub, rules.check, rules.own_checks)):
        return f"waits: {held}"
    if names:
        remote = _remote(view) + _silence(about, names)
        return f"nominated to {', '.join(names)}, not admitted there yet{remote}"
    if about.policy.mode != "dispatch":
        mode = about.policy.mode
        return f"waits for the hub's Kueue to choose (mode {mode}){_ours(about, view)}"
    if (waits := lingering(view, about.memo, about.policy, about.now_s, _claimed(bus))) is not None:
        return f"waits: {waits.why}"
    shortlist = shortlist_for(about.know, view, about.policy, about.now_s)
    if shortlist.candidates:
        return f"about to be nominated to {shortlist.candidates[0].ref.name}"
    if shortlist.unknown:
        return "waits: nothing is known of its clusters; soon the configuration's order counts"
    return f"waits: none of {len(rules.clusters)} clusters can take it"


def _sender(about: About, bus: Workload) -> str:
    """Return the party that chose the cluster of the open attempt."""
    decision = about.decisions.get(bus.decision)
    choice = _choice_of(decision, bus) if decision is not None else None
    mode = decision.settings.get("mode") if decision is not None else about.policy.mode
    if mode != "dispatch":
        return "the hub's Kueue"
    if choice is not None and choice.follows not in ("", KEPT_FOR_IT) and not about.memo.blind:
        return "a nomination that is not Berthmaster's"
    return "Berthmaster"


def _claimed(bus: Workload) -> str:
    return bus.cluster if bus.live else ""


def _ours(about: About, view: WorkloadView) -> str:
    """Describe the cluster that mode dispatch would choose."""
    shortlist = shortlist_for(about.know, view, about.policy, about.now_s)
    if not shortlist.candidates:
        return "; in mode dispatch it would wait"
    best = shortlist.candidates[0]
    return f"; in mode dispatch it would go to {best.ref.name} ({best.words})"


def _silence(about: About, names: Sequence[str]) -> str:
    """Describe silent clusters among ``names``: their state is outdated."""
    since = ((name, about.know.view.clusters.peek(name).alive_at_s) for name in names)
    silent = [
        f"{name} is silent for {about.now_s - at_s:.0f} s"
        for name, at_s in since
        if float("-inf") < at_s < about.now_s - about.policy.stale_after_s
    ]
    return f" ({'; '.join(silent)})" if silent else ""


def _remote(view: WorkloadView) -> str:
    words = [f"{name} says: {c.message}" for name, c in sorted(view.copies.items()) if c.message]
    return f" ({'; '.join(words)})" if words else ""


def _hints(about: About, view: WorkloadView) -> tuple[str, ...]:
    hints = []
    if about.trap is not None:
        hints.append(about.trap.words)
    demoted = about.know.demoted(about.policy, about.now_s)
    refs = view.rules.clusters if view.rules is not None else ()
    for ref in refs:
        if ref.name in demoted:
            cure = SILENT_CURE.format(ref.name)
            hints.append(f"{ref.name} goes last: {demoted[ref.name]}; {cure}")
    hints += all_unlisted(about.know.view.clusters.peek(ref.name) for ref in refs)
    if view.job is not None and (early := early_words(view.job)):
        hints.append(early)
    if view.hub is not None and view.bus is not None and view.bus.origin is not None:
        hints += [f"not understood: {problem}" for problem in read_request(view.hub).problems]
    return tuple(hints)


def _choice_of(decision: Decision, workload: Workload) -> Choice | None:
    for choice in decision.placements:
        if (choice.tenant, choice.id) == (workload.tenant, workload.id):
            return choice
    return None


def _group(text: str) -> str:
    """Reduce a reason to its common part."""
    return text.split(" (", maxsplit=1)[0].split(":", maxsplit=1)[0]
