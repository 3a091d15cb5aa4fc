"""Policy, webhook or gate: which lets Kueue clear nominations without ending its manager."""

from typing import Any

import pytest

from berthmaster.cli.doctor.facts import (
    WEBHOOK_KIND,
    ClusterQueue,
    FoundPolicy,
    ManagerConfig,
    Mode,
    Poisoned,
)
from berthmaster.cli.doctor.findings import Finding, Report
from berthmaster.cli.doctor.nominations import MERGE_GATE
from tests.unit.cli.doctor.surveys import MANAGERS, ON, finding, of_hub, wrong

KUBECTL = "kubectl --context kind-hub "
HELM = (
    "helm --kube-context kind-hub -n sys upgrade --install --create-namespace "
    "--reset-then-reuse-values berth-hub deploy/chart --set role=hub --set clearing.by=auto "
    "--set hub.mode="
)
CALM = ClusterQueue(name="gpus", checks=("mk",), state=ON)
PREEMPTS = ClusterQueue(name="gpus", checks=("mk",), state=ON, preempts=True)
OTHER = ClusterQueue(name="web", state=ON, preempts=True)  # none of MultiKueue's


def report(
    mode: Mode = "dispatch",
    *,
    gate: bool | None = None,
    policy: bool = False,
    served: bool = True,
    queues: tuple[ClusterQueue, ...] = (CALM,),
    **changed: Any,
) -> Report:
    gates = {} if gate is None else {MERGE_GATE: gate}
    manager = ManagerConfig(
        dispatcher=MANAGERS[mode].dispatcher, step_size=MANAGERS[mode].step_size, gates=gates
    )
    changed.setdefault("clearing", (FoundPolicy(name="clears"),) if policy else ())
    changed.setdefault("manager", manager)
    return of_hub(mode, serves_policies=served, cluster_queues=queues, **changed)


GATE_KILLS = f"the gate {MERGE_GATE} is on and ClusterQueue"
NOTHING = "nothing clears nominations: there is no"
GATE_FOR_NOW = f"the gate {MERGE_GATE} clears nominations, as long as no ClusterQueue preempts"


@pytest.mark.parametrize(
    ("gate", "policy", "served", "queue", "level", "what"),
    [
        (None, True, True, CALM, "", ""),
        (None, True, True, PREEMPTS, "", ""),
        (True, True, True, CALM, "", ""),
        (True, True, True, PREEMPTS, "blocks", f"{GATE_KILLS} gpus may preempt"),
        (True, False, True, CALM, "warning", GATE_FOR_NOW),
        (True, False, False, CALM, "warning", GATE_FOR_NOW),
        (True, False, False, PREEMPTS, "blocks", f"{GATE_KILLS} gpus may preempt"),
        (True, False, True, OTHER, "blocks", f"{GATE_KILLS} web may preempt"),
        (False, False, True, CALM, "blocks", f"{NOTHING} MutatingAdmissionPolicy"),
        (None, False, True, PREEMPTS, "blocks", f"{NOTHING} MutatingAdmissionPolicy"),
        (None, False, False, CALM, "blocks", f"{NOTHING} clearing webhook"),
        (None, False, False, PREEMPTS, "blocks", f"{NOTHING} clearing webhook"),
    ],
)
def test_what_dispatch_needs(
    gate: bool | None, policy: bool, served: bool, queue: ClusterQueue, level: str, what: str
) -> None:
    queues = (CALM, queue) if queue is OTHER else (queue,)
    found = report(gate=gate, policy=policy, served=served, queues=queues)
    assert [(each[0], each[2].startswith(what)) for each in wrong(found)] == (
        [(level, True)] if level else []
    )
    assert found.ready == (level != "blocks")


def test_in_observe_only_a_gate_that_ends_the_manager_is_told() -> None:
    assert wrong(report("observe", gate=None)) == []
    assert wrong(report("observe", gate=True)) == []
    found = finding(report("observe", gate=True, queues=(PREEMPTS,)), GATE_KILLS)
    assert f"#     {MERGE_GATE}: false" in found.change
    assert "helm" not in found.change  # nothing nominates in this mode


def test_the_policy_comes_before_the_gate_goes_and_the_way_back_is_the_other_way_round() -> None:
    found = finding(report(gate=True, queues=(PREEMPTS,)), GATE_KILLS)
    assert found.change.splitlines()[0] == f"{HELM}dispatch"
    assert f"#     {MERGE_GATE}: false" in found.change
    assert f"#     {MERGE_GATE}: true" in found.undo
    assert found.undo.splitlines()[-1].startswith(f"{HELM}observe   # once the dispatcher")
    alone = finding(report(gate=True, policy=True, queues=(PREEMPTS,)), GATE_KILLS)
    assert "helm" not in alone.change


def test_the_policy_is_named_before_the_dispatcher_that_needs_it() -> None:
    found = wrong(report(manager=ManagerConfig()))
    assert [what.partition(":")[0] for _, _, what in found] == [
        "nothing clears nominations",
        "the dispatcher is AllAtOnce, the default; dispatch needs one that is not Kueue's",
    ]


def webhook(**changed: Any) -> FoundPolicy:
    state = f"failurePolicy {'Ignore' if changed.get('ignores_failure') else 'Fail'}"
    return FoundPolicy(name="ours", kind=WEBHOOK_KIND, state=state, **changed)


def test_a_webhook_says_its_failure_policy_and_what_that_means() -> None:
    def said(**changed: Any) -> Finding:
        found = report(served=False, queues=(PREEMPTS,), clearing=(webhook(**changed),))
        return finding(found, "a clearing webhook clears nominations (ours, failurePolicy ")

    fails, ignores = said(), said(ignores_failure=True)
    assert (fails.level, ignores.level) == ("ok", "warning")
    assert "the API server refuses the writes" in fails.means
    assert "an eviction leaves its nomination behind" in ignores.means
    assert ignores.change.startswith(
        f"{KUBECTL}patch mutatingwebhookconfiguration ours --type json"
    )
    assert ignores.undo == ignores.change.replace('"Fail"', '"Ignore"')


def test_a_policy_that_is_not_in_effect_is_none_and_why_is_told() -> None:
    idle = FoundPolicy(name="mine", idle="no MutatingAdmissionPolicyBinding names it")
    [(_, _, what)] = wrong(report(clearing=(idle,)))
    assert what.endswith("; mine is there, but no MutatingAdmissionPolicyBinding names it")


@pytest.mark.parametrize("mode", ["observe", "dispatch"])
def test_a_workload_that_ends_the_manager_is_told_in_every_mode_with_each_step(mode: Mode) -> None:
    bad = Poisoned(namespace="ml", name="job-train-1", owner=("Job", "train"))
    found = finding(report(mode, policy=True, poisoned=(bad,)), "ends Kueue's manager")
    assert found.level == "blocks"
    steps = [
        KUBECTL + "-n ml delete job train --wait=false",
        KUBECTL + """-n ml patch workload job-train-1 --type merge -p """
        """'{"metadata":{"finalizers":null}}'""",
        KUBECTL + "-n ml delete workload job-train-1 --ignore-not-found --wait=false",
    ]
    assert found.change.splitlines() == steps

    # A webhook of Kueue's own would be asked about the finalizer, and nobody would answer.
    asked = finding(
        report(mode, policy=True, poisoned=(bad,), workload_webhook="kueue-validating"),
        "ends Kueue's manager",
    )
    patch = KUBECTL + "patch validatingwebhookconfiguration kueue-validating -p "

    def hook(policy: str) -> str:
        return patch + (
            f"""'{{"webhooks":[{{"name":"vworkload.kb.io","failurePolicy":"{policy}"}}]}}'"""
        )

    assert asked.change.splitlines() == [hook("Ignore"), *steps, hook("Fail")]


def test_a_second_dispatcher_is_named_where_we_nominate() -> None:
    rivals = {"rival": tuple(f"team/job-{n}" for n in range(5))}
    named = "rival nominates clusters as well, for team/job-0, team/job-1, team/job-2 and 2 more"
    assert ("warning", "hub", named) in wrong(report(policy=True, nominators=rivals))
    assert wrong(report("observe", nominators=rivals)) == []
