"""What lets Kueue clear another writer's nomination, and the side effects.

There are three ways: an admission policy of the API server (Kubernetes 1.36), an admission webhook
with the same rule (`berth serve clearing`), and a gate of Kueue's manager. The gate makes Kueue
write differences only. A preemption that overtakes an admission then writes all conditions of a
Workload, but not its admission. The manager crashes on that Workload, at every start (seen with
v0.19.2 after 8 to 26 s of 80 Jobs). So the gate is for hubs without preempting ClusterQueues.
Example: a hub of Kubernetes 1.35 whose queues preempt needs the webhook, and our chart brings it.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from berthmaster.cli.doctor.facts import WEBHOOK_KIND, FoundPolicy, HubFacts, Poisoned, Survey
from berthmaster.cli.doctor.findings import HUB_RELEASE, Finding, install, kubectl
from berthmaster.cli.doctor.gates import set_gate
from berthmaster.cli.doctor.objects import WORKLOAD_WEBHOOK

MERGE_GATE: Final = "WorkloadRequestUseMergePatch"
_UNCLEARED: Final = (
    "A job would be admitted and RUN on the worker while the hub shows it as pending for ever: "
    "Kueue could not clear the field that we have written."
)


def findings(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    """Yield findings about the running manager, then about the mode."""
    for workload in hub.poisoned:
        yield _poisoned(hub, workload)
    if survey.mode == "dispatch":
        yield from _second_dispatchers(hub)
    config = hub.manager
    if config is None or config.problem:
        return
    preempting = _preempting(hub)
    gate = config.gates.get(MERGE_GATE) is True
    if gate and preempting:
        yield _deadly(hub, survey, preempting)
    elif survey.mode == "dispatch":
        yield _way(hub, survey, gate=gate)


def _second_dispatchers(hub: HubFacts) -> Iterator[Finding]:
    for manager, workloads in hub.nominators.items():
        more = f" and {len(workloads) - 3} more" if len(workloads) > 3 else ""
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"{manager} nominates clusters as well, for {', '.join(workloads[:3])}{more}",
            means="Two dispatchers undo each other's nominations, and each time Kueue makes and "
            "removes copies. Ours leaves such a Workload alone for longer and longer. The name is "
            "the field manager of status.nominatedClusterNames.",
            change=f"Stop {manager}, or let it be the only one and run ours in mode observe.",
            undo=f"Start {manager} again.",
        )


def _way(hub: HubFacts, survey: Survey, *, gate: bool) -> Finding:
    """Return the finding on clearing nominations, where the gate does not crash Kueue."""
    if works := [each for each in hub.clearing if not each.idle]:
        return _in_effect(hub, works)
    change, undo = _clearing(hub, survey)
    if gate:
        off, on = set_gate(hub, MERGE_GATE, on=False)
        return Finding(
            level="warning",
            where=hub.name,
            what=f"the gate {MERGE_GATE} clears nominations, as long as no ClusterQueue preempts",
            means=f"With preemption this gate ends Kueue's manager for good. Put {_what(hub)} in "
            "its place before anybody allows a queue to preempt.",
            change=f"{change}\n{off}",
            undo=f"{on}\n{undo}",
        )
    idle = "".join(f"; {each.name} is there, but {each.idle}" for each in hub.clearing)
    return Finding(
        level="blocks",
        where=hub.name,
        what=f"nothing clears nominations: there is no {_what(hub)}{idle}",
        means=_UNCLEARED,
        change=change,
        undo=undo,
    )


def _in_effect(hub: HubFacts, works: list[FoundPolicy]) -> Finding:
    listed = ", ".join(f"{each.name}{f', {each.state}' if each.state else ''}" for each in works)
    what = f"a {works[0].kind} clears nominations ({listed})"
    ignoring = [each for each in works if each.ignores_failure]
    if len(ignoring) < len(works):
        waits = "While none of its pods answers, the API server refuses the writes that end a "
        waits += "nomination, and Kueue tries them again."
        means = waits if works[0].kind == WEBHOOK_KIND else ""
        return Finding(level="ok", where=hub.name, what=what, means=means)
    command = f"{kubectl(hub)} patch mutatingwebhookconfiguration {ignoring[0].name} --type json -p"

    def fails(policy: str) -> str:
        patch = f'[{{"op":"replace","path":"/webhooks/0/failurePolicy","value":"{policy}"}}]'
        return f"{command} {shlex.quote(patch)}"

    return Finding(
        level="warning",
        where=hub.name,
        what=f"{what}, and its failurePolicy is Ignore",
        means="While none of its pods answers, an eviction leaves its nomination behind, and the "
        "job is sent to the old cluster again. With Fail, Kueue tries such a write again.",
        change=fails("Fail"),
        undo=fails("Ignore"),
    )


def _deadly(hub: HubFacts, survey: Survey, preempting: str) -> Finding:
    change, undo = set_gate(hub, MERGE_GATE, on=False)
    if survey.mode == "dispatch" and all(each.idle for each in hub.clearing):
        first, last = _clearing(hub, survey)
        change, undo = f"{first}\n{change}", f"{undo}\n{last}"
    return Finding(
        level="blocks",
        where=hub.name,
        what=f"the gate {MERGE_GATE} is on and {preempting}: Kueue's manager will end for good",
        means="A preemption that overtakes an admission leaves a Workload with QuotaReserved and "
        "Evicted but without status.admission, on which the manager ends at every start.",
        change=change,
        undo=undo,
    )


def _preempting(hub: HubFacts) -> str:
    """Return the preempting queues as text. One manager serves MultiKueue's queues and all
    others."""
    names = [queue.name for queue in hub.cluster_queues if queue.preempts]
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    kind = "ClusterQueue" if len(names) == 1 else "ClusterQueues"
    return f"{kind} {', '.join(names[:3])}{more} may preempt"


def _what(hub: HubFacts) -> str:
    """Return what the chart brings on this Kubernetes."""
    return "MutatingAdmissionPolicy" if hub.serves_policies else WEBHOOK_KIND


def _clearing(hub: HubFacts, survey: Survey) -> tuple[str, str]:
    """Return the commands that install what clears nominations, and the commands to undo that."""
    values = ("role=hub", "clearing.by=auto")
    change, undo = (
        install(hub, survey.namespace, HUB_RELEASE, *values, f"hub.mode={mode}")[0]
        for mode in ("dispatch", "observe")
    )
    return change, f"{undo}   # once the dispatcher is Kueue's own again"


def _poisoned(hub: HubFacts, workload: Poisoned) -> Finding:
    """Return the remedy, which must bypass Kueue's webhook: the manager that would answer is
    down."""
    command, inside = kubectl(hub), f"-n {shlex.quote(workload.namespace)}"
    kind, name = workload.owner
    steps = []
    if kind:
        steps.append(f"{command} {inside} delete {kind.lower()} {name} --wait=false")
    free = """'{"metadata":{"finalizers":null}}'"""
    steps += [
        f"{command} {inside} patch workload {workload.name} --type merge -p {free}",
        f"{command} {inside} delete workload {workload.name} --ignore-not-found --wait=false",
    ]
    if hub.workload_webhook:
        patch = f"{command} patch validatingwebhookconfiguration {hub.workload_webhook} -p "

        def asks(policy: str) -> str:
            hook = f'{{"name":"{WORKLOAD_WEBHOOK}","failurePolicy":"{policy}"}}'
            return f"""{patch}'{{"webhooks":[{hook}]}}'"""

        steps = [asks("Ignore"), *steps, asks("Fail")]
    what = f"Workload {workload.namespace}/{workload.name}"
    job = f" of {kind} {name}" if kind else ""
    return Finding(
        level="blocks",
        where=hub.name,
        what=f"{what}{job} ends Kueue's manager at every start: it has QuotaReserved and Evicted "
        "and no status.admission",
        means=f"A preemption under the gate {MERGE_GATE} has left it so. Nothing of this hub's "
        "Kueue goes on before it is gone; its job must be submitted again.",
        change="\n".join(steps),
        undo=f"# submit {f'{kind} {name}' if kind else 'its job'} again",
    )
