"""Findings about a worker's accelerators: sharing, claiming, and starting whole gangs.

The strength of a shared GPU's limit decides which requests go there (``isolation``). The component
that starts all pods of a gang or none decides whether two gangs can deadlock.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from berthmaster.cli.doctor.facts import Sharing, Together, WorkerFacts
from berthmaster.cli.doctor.findings import Finding, kubectl
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB

LIMITS: Final[Mapping[Sharing, str]] = {
    "MIG": "each slice is a device of its own (isolation hardware)",
    "MPS": "each pod is held to its memory (isolation memory)",
    "HAMi": "each pod is held to its memory (isolation memory)",
    "time slicing": "nothing holds a pod to its part (isolation none)",
}
STARTS: Final[Mapping[Together, str]] = {
    "kubernetes": "Kubernetes' own PodGroups (scheduling.k8s.io)",
    "workload": "Kubernetes' own Workloads (scheduling.k8s.io, 1.35)",
    "coscheduling": "PodGroups of scheduler-plugins, for pods of a scheduler that has the plugin",
    "volcano": "Volcano's PodGroups, its scheduler for all pods (scheduling.volcano.sh)",
    "kai": "KAI's scheduler, for its own pods",
    "kueue": "Kueue's waitForPodsReady, for jobs of its queues",
}


def findings(worker: WorkerFacts) -> Iterator[Finding]:
    shared = Counter(node.sharing for node in worker.gpu_nodes if node.sharing)
    for how, nodes in sorted(shared.items()):
        what = f"{nodes} nodes share GPUs by {how}: {LIMITS[how]}"
        yield Finding(level="ok", where=worker.name, what=what)
    for driver in worker.drivers:
        if driver.classes:
            what = f"devices of {driver.name} on {driver.nodes} nodes, claimed by DeviceClass "
            yield Finding(level="ok", where=worker.name, what=what + ", ".join(driver.classes))
            continue
        yield Finding(
            level="warning",
            where=worker.name,
            what=f"no DeviceClass names {driver.name}, which has devices on {driver.nodes} nodes",
            means="Nobody can claim them, so they are left out.",
            change=f"""{kubectl(worker)} apply -f - <<EOF   # or as the driver's own chart has it
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {driver.name}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{driver.name}'"}}}}]}}
EOF""",
            undo=f"{kubectl(worker)} delete deviceclass {driver.name}",
        )
    if VOLCANO_JOB.name in worker.job_kinds:
        yield Finding(
            level="ok",
            where=worker.name,
            what="Volcano's own Jobs are served (batch.volcano.sh): made where the executor has "
            "--jobs volcano, Kubernetes' otherwise",
        )
    if not worker.gpu_nodes and not worker.drivers:
        return
    if worker.together:
        by = "; ".join(STARTS[one] for one in worker.together)
        yield Finding(level="ok", where=worker.name, what=f"gangs start together by {by}")
        return
    yield Finding(
        level="note",
        where=worker.name,
        what="nothing starts all pods of a gang or none",
        means="Of two gangs that hold what each other waits for, the younger gives way after "
        "--gang-limit-s of the executor (30 s), blamed for nothing.",
        change="# any one of: Kubernetes 1.36 with the gates GenericWorkload and GangScheduling, "
        "and scheduling.k8s.io/v1alpha2\n# in --runtime-config; scheduler-plugins' coscheduling; "
        "Volcano; KAI's scheduler; Kueue's waitForPodsReady",
    )
