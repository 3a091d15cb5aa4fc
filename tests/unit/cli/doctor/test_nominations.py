"""Policy or gate: which of the two lets Kueue clear nominations without ending its manager."""

from typing import Any

import pytest

from berthmaster.cli.doctor.facts import ClusterQueue, FoundPolicy, ManagerConfig, Mode, Poisoned
from berthmaster.cli.doctor.findings import Report
from berthmaster.cli.doctor.nominations import MERGE_GATE
from berthmaster.lib.kueue.names import DISPATCHER
from tests.unit.cli.doctor.surveys import MANAGERS, ON, finding, of_hub, wrong

KUBECTL = "kubectl --context kind-hub "
APPLY = KUBECTL + "apply -f deploy/policies/nominations.yaml"
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
GATE_FOR_NOW = f"the gate {MERGE_GATE} clears nominations, as long as no ClusterQueue preempts"


@pytest.mark.parametrize(
    ("gate", "policy", "served", "queue", "level", "what"),
    [
        (None, True, True, CALM, "", ""),
        (None, True, True, PREEMPTS, "", ""),
        (True, True, True, CALM, "", ""),
        (True, True, True, PREEMPTS, "blocks", f"{GATE_KILLS} gpus may preempt"),
        (True, False, True, CALM, "warning", GATE_FOR_NOW),
        (True, False, False, CALM, "note", GATE_FOR_NOW),
        (True, False, False, PREEMPTS, "blocks", f"{GATE_KILLS} gpus may preempt"),
        (True, False, True, OTHER, "blocks", f"{GATE_KILLS} web may preempt"),
        (False, False, True, CALM, "blocks", "nothing clears nominations: no Mutating"),
        (None, False, True, PREEMPTS, "blocks", "nothing clears nominations: no Mutating"),
        (None, False, False, CALM, "blocks", f"nothing clears nominations: the gate {MERGE_GATE}"),
        (None, False, False, PREEMPTS, "blocks", "nothing can clear nominations here"),
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
    assert "nominations.yaml" not in found.change  # nothing nominates in this mode


def test_the_policy_comes_before_the_gate_goes_and_the_way_back_is_the_other_way_round() -> None:
    found = finding(report(gate=True, queues=(PREEMPTS,)), GATE_KILLS)
    assert found.change.splitlines()[0] == APPLY
    assert f"#     {MERGE_GATE}: false" in found.change
    assert f"#     {MERGE_GATE}: true" in found.undo
    assert found.undo.splitlines()[-1].startswith(
        KUBECTL + "delete -f deploy/policies/nominations.yaml   # once the dispatcher"
    )
    alone = finding(report(gate=True, policy=True, queues=(PREEMPTS,)), GATE_KILLS)
    assert "nominations.yaml" not in alone.change


def test_the_policy_is_named_before_the_dispatcher_that_needs_it() -> None:
    found = wrong(report(manager=ManagerConfig()))
    assert [what.partition(":")[0] for _, _, what in found] == [
        "nothing clears nominations",
        "the dispatcher is AllAtOnce, the default; dispatch needs one that is not Kueue's",
    ]


def test_where_neither_way_is_safe_another_mode_is_advised() -> None:
    def means(gate: bool) -> str:
        return finding(report(gate=gate, served=False, queues=(PREEMPTS,)), "may preempt").means

    for gate in (False, True):
        assert "Use the mode observe, which nominates nothing." in means(gate)
    assert f"The dispatcher {DISPATCHER} goes before the gate" in means(True)


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
