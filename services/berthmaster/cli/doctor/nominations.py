"""The two ways that let Kueue clear another writer's nomination, and their side effects.

The ways are an admission policy of the API server, and a gate of Kueue's manager. The gate makes
Kueue write differences only. A preemption that overtakes an admission then writes all conditions of
a Workload, but not its admission. The manager crashes on that Workload, at every start (seen with
v0.19.2 after 8 to 26 s of 80 Jobs). So the gate is for hubs without preempting ClusterQueues, and
the policy for all hubs whose Kubernetes has it.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from berthmaster.cli.doctor.facts import HubFacts, ManagerConfig, Poisoned, Survey
from berthmaster.cli.doctor.findings import Finding, kubectl
from berthmaster.cli.doctor.gates import set_gate
from berthmaster.cli.doctor.objects import WORKLOAD_WEBHOOK

MERGE_GATE: Final = "WorkloadRequestUseMergePatch"
POLICY: Final = "clear-nominated-cluster-names"
POLICY_FILE: Final = "deploy/policies/nominations.yaml"
_OTHER_MODE: Final = "Use the mode observe, which nominates nothing."
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
        yield _way(hub, config, gate=gate, preempting=preempting)


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


def _way(hub: HubFacts, config: ManagerConfig, *, gate: bool, preempting: str) -> Finding:
    """Return the finding on clearing nominations, where the gate does not crash Kueue."""
    if works := [each.name for each in hub.clearing if not each.idle]:
        listed = ", ".join(works)
        what = f"a MutatingAdmissionPolicy clears nominations ({listed})"
        return Finding(level="ok", where=hub.name, what=what)
    if gate and not hub.serves_policies:
        return Finding(
            level="note",
            where=hub.name,
            what=f"the gate {MERGE_GATE} clears nominations, as long as no ClusterQueue preempts",
            means="With preemption this gate ends Kueue's manager for good. The admission policy "
            "that takes its place comes with Kubernetes 1.36.",
        )
    if gate:
        change, undo = _policy(hub)
        off, on = set_gate(hub, MERGE_GATE, on=False)
        return Finding(
            level="warning",
            where=hub.name,
            what=f"the gate {MERGE_GATE} clears nominations, as long as no ClusterQueue preempts",
            means="With preemption this gate ends Kueue's manager for good. Put the policy in its "
            "place before anybody allows a queue to preempt.",
            change=f"{change}\n{off}",
            undo=f"{on}\n{undo}",
        )
    idle = "".join(f"; {each.name} is there, but {each.idle}" for each in hub.clearing)
    if hub.serves_policies:
        change, undo = _policy(hub)
        return Finding(
            level="blocks",
            where=hub.name,
            what=f"nothing clears nominations: no MutatingAdmissionPolicy{idle}",
            means=_UNCLEARED,
            change=change,
            undo=undo,
        )
    if preempting:
        return Finding(
            level="blocks",
            where=hub.name,
            what="nothing can clear nominations here: this Kubernetes has no "
            f"MutatingAdmissionPolicy, and with the gate {MERGE_GATE} Kueue's manager would end, "
            f"since {preempting}",
            means=f"{_UNCLEARED} {_OTHER_MODE}",
        )
    change, undo = set_gate(hub, MERGE_GATE, on=True)
    return Finding(
        level="blocks",
        where=hub.name,
        what=f"nothing clears nominations: the gate {MERGE_GATE} is off, and this Kubernetes has "
        "no MutatingAdmissionPolicy",
        means=f"{_UNCLEARED} The gate is safe only while no ClusterQueue preempts.",
        change=change,
        undo=undo,
    )


def _deadly(hub: HubFacts, survey: Survey, preempting: str) -> Finding:
    change, undo = set_gate(hub, MERGE_GATE, on=False)
    means = (
        "A preemption that overtakes an admission leaves a Workload with QuotaReserved and "
        "Evicted but without status.admission, on which the manager ends at every start."
    )
    if survey.mode == "dispatch" and not any(not each.idle for each in hub.clearing):
        if hub.serves_policies:
            first, last = _policy(hub)
            change, undo = f"{first}\n{change}", f"{undo}\n{last}"
        else:
            means += f" {_OTHER_MODE}"
            dispatcher = hub.manager.dispatcher if hub.manager is not None else ""
            if dispatcher:
                means += (
                    f" The dispatcher {dispatcher} goes before the gate: without both, what it "
                    "nominates runs on a worker and is pending on the hub."
                )
    return Finding(
        level="blocks",
        where=hub.name,
        what=f"the gate {MERGE_GATE} is on and {preempting}: Kueue's manager will end for good",
        means=means,
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


def _policy(hub: HubFacts) -> tuple[str, str]:
    command = kubectl(hub)
    undo = f"{command} delete -f {POLICY_FILE}   # once the dispatcher is Kueue's own again"
    return f"{command} apply -f {POLICY_FILE}", undo


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
