"""Jobs that a worker deletes before the hub reads their end are named with what prevents that."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.cli.doctor import objects
from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.facts import EarlyDeleted, FoundPolicy, ManagerConfig, Survey
from berthmaster.cli.doctor.findings import Finding
from berthmaster.lab.controlplane.api import documents
from berthmaster.lib.kueue.jobs import POLICY_FILE, HubJob
from berthmaster.lib.kueue.names import MULTIKUEUE
from berthmaster.lib.kueue.versions import ENDED_JOBS
from tests.unit.cli.doctor.surveys import hub, worker

JOBS = tuple(EarlyDeleted("Job", "ml", f"train-{n}", 0) for n in range(4))
SET = EarlyDeleted("JobSet", "ml", "set", 60)
KEEPS = FoundPolicy(name="keeps")
APPLY = f"kubectl --kubeconfig /k/b.yaml apply -f {POLICY_FILE}"


def found(
    jobs: tuple[EarlyDeleted, ...],
    *,
    of_worker: dict[str, Any] | None = None,
    workers: bool = True,
    **of_hub: Any,
) -> list[Finding]:
    report = diagnose(
        Survey(
            mode="observe",
            namespace="sys",
            hub=hub(early_deleted=jobs, **of_hub),
            workers=(worker(**(of_worker or {})),) if workers else (),
        )
    )
    return [each for each in report.findings if "may run again" in each.what]


def test_jobs_the_gate_and_the_policy_are_named() -> None:
    [one] = found(JOBS, of_worker={"serves_policies": True})
    assert one.level == "warning"
    assert one.what.endswith(
        "may run again: Job ml/train-0, Job ml/train-1, Job ml/train-2 and 1 more"
    )
    assert ENDED_JOBS.name in one.means
    assert (one.change, one.undo) == (APPLY, APPLY.replace(" apply ", " delete "))


def test_a_policy_in_every_worker_or_the_gate_is_enough() -> None:
    assert found(()) == []
    assert found(JOBS, of_worker={"keeping": (KEEPS,)}) == []
    gate: dict[str, Any] = {"manager": ManagerConfig(gates={ENDED_JOBS.name: True})}
    assert found(JOBS, **gate) == []
    [one] = found((*JOBS, SET), **gate)  # the gate is for Jobs alone
    assert one.what.endswith("may run again: JobSet ml/set")
    idle = FoundPolicy(name="mine", idle="no binding")
    assert len(found(JOBS, of_worker={"keeping": (idle,)})) == 1


@pytest.mark.parametrize(
    ("version", "knows"),
    [
        ("v0.18.6", False),
        ("v0.18.7", True),
        ("v0.19.2", False),
        ("v0.19.3", True),
        ("v0.20.0", True),
        ("v0.17.9", False),
        ("latest", False),
    ],
)
def test_the_gate_is_advised_only_to_a_kueue_that_knows_it(version: str, knows: bool) -> None:
    """Any other would end at its next start."""
    [one] = found(JOBS, kueue_image=f"registry.k8s.io/kueue/kueue:{version}")
    assert (f"#     {ENDED_JOBS.name}: true" in one.change) is knows
    assert (f"#     {ENDED_JOBS.name}: false" in one.undo) is knows
    assert "berlin: its Kubernetes has no such policies" in one.change
    assert ("leave ttlSecondsAfterFinished out" in one.change) is not knows


def test_without_workers_the_step_is_told_for_each_of_them() -> None:
    [one] = found(JOBS, workers=False)
    assert one.change == f"# for each worker: kubectl --context WORKER apply -f {POLICY_FILE}"


def test_only_jobs_of_multikueue_that_have_not_ended_are_early_deleted() -> None:
    def job(name: str, ttl_s: int | None = 0, by: str = MULTIKUEUE, end: str = "") -> HubJob:
        status = {"conditions": [{"type": end, "status": "True"}] if end else []}
        spec = {"managedBy": by, "ttlSecondsAfterFinished": ttl_s}
        body = {"metadata": {"namespace": "ml", "name": name}, "spec": spec, "status": status}
        return msgspec.convert(body, HubJob)

    jobs = [
        job("a"),
        job("b", 3600),
        job("c", None),
        job("d", by="other"),
        job("e", end="Complete"),
        job("f", end="Failed"),
        job("g", end="Completed"),
    ]
    assert objects.early_deleted("Job", jobs) == (EarlyDeleted("Job", "ml", "a", 0),)


def test_the_policy_of_ours_is_one_that_keeps_ended_jobs() -> None:
    found = documents(Path(__file__).parents[4] / POLICY_FILE)
    kinds = [(one["kind"], msgspec.json.encode(one)) for one in found]
    policies = [
        msgspec.json.decode(text, type=objects.Policy)
        for kind, text in kinds
        if kind == "MutatingAdmissionPolicy"
    ]
    bindings = [
        msgspec.json.decode(text, type=objects.PolicyBinding)
        for kind, text in kinds
        if kind == "MutatingAdmissionPolicyBinding"
    ]
    there = objects.find_policies(policies, bindings, objects.keeps_ended_jobs)
    assert there == (FoundPolicy(name="keep-ended-multikueue-jobs"),)
    assert len(policies) == len(bindings) == 2
