"""Small, valid manifests of Kueue's objects, so that a test states only its subject. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from berthmaster.lab.controlplane.kueue.objects import API_VERSION, MULTIKUEUE, QUEUE_LABEL, Obj

RUN_FOREVER = "forever"


def _named(kind: str, name: str, namespace: str = "") -> Obj:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta}


def flavor(name: str = "default", labels: Mapping[str, str] | None = None) -> Obj:
    """Return a ResourceFlavor. With labels, its pods run only on matching nodes."""
    spec = {"nodeLabels": dict(labels)} if labels else {}
    return {**_named("ResourceFlavor", name), "spec": spec}


def cluster_queue(
    name: str,
    quotas: Mapping[str, Mapping[str, str | int]],
    *,
    checks: Sequence[str] = (),
    stop_policy: str = "None",
    preemption: str = "Never",
    strategy: str = "BestEffortFIFO",
) -> Obj:
    """Return a ClusterQueue for every namespace.

    Quotas are {flavor: {resource: amount}}, all with the same resources.
    """
    resources = list(next(iter(quotas.values())))
    flavors = [
        {
            "name": each,
            "resources": [
                {"name": resource, "nominalQuota": str(amounts[resource])} for resource in resources
            ],
        }
        for each, amounts in quotas.items()
    ]
    spec: Obj = {
        "namespaceSelector": {},
        "queueingStrategy": strategy,
        "stopPolicy": stop_policy,
        "preemption": {"withinClusterQueue": preemption},
        "resourceGroups": [{"coveredResources": resources, "flavors": flavors}],
    }
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": each} for each in checks]}
    return {**_named("ClusterQueue", name), "spec": spec}


def local_queue(namespace: str, name: str, leads_to: str, *, stop_policy: str = "None") -> Obj:
    spec = {"clusterQueue": leads_to, "stopPolicy": stop_policy}
    return {**_named("LocalQueue", name, namespace), "spec": spec}


def multikueue_check(name: str, config: str) -> Obj:
    """Return the AdmissionCheck that sends Workloads to the clusters of a config."""
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": config}
    spec = {"controllerName": MULTIKUEUE, "parameters": parameters}
    return {**_named("AdmissionCheck", name), "spec": spec}


def own_check(name: str, controller: str = "berthmaster.dev/placement") -> Obj:
    """Return an AdmissionCheck of another controller, which the test must set Active."""
    return {**_named("AdmissionCheck", name), "spec": {"controllerName": controller}}


def config(name: str, clusters: Sequence[str]) -> Obj:
    return {**_named("MultiKueueConfig", name), "spec": {"clusters": list(clusters)}}


def cluster(name: str, secret: str) -> Obj:
    """Return a MultiKueueCluster whose kubeconfig is in a Secret."""
    source = {"kubeConfig": {"locationType": "Secret", "location": secret}}
    return {**_named("MultiKueueCluster", name), "spec": {"clusterSource": source}}


def priority_class(name: str, value: int) -> Obj:
    return {**_named("WorkloadPriorityClass", name), "value": value}


def job(
    namespace: str,
    name: str,
    queue: str,
    *,
    requests: Mapping[str, str] | None = None,
    pods: int = 1,
    run_s: str = RUN_FOREVER,
    exit_code: int = 0,
    on_hub: bool = True,
    labels: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
) -> Obj:
    """Return a Job for a LocalQueue; on a hub, MultiKueue manages the Job.

    kwok's annotations control its pods. ``claims`` maps names in the pod to ResourceClaimTemplates.
    """
    resources = dict(requests or {"cpu": "1"})
    container: Obj = {"name": "main", "image": "none", "resources": {"requests": resources}}
    # Extended resources need limits equal to their requests.
    limits = {each: amount for each, amount in resources.items() if "/" in each}
    if limits:
        container["resources"]["limits"] = limits
    annotations = {"berth.test/run-s": run_s, "berth.test/exit-code": str(exit_code)}
    pod: Obj = {"restartPolicy": "Never", "containers": [container]}
    if claims:
        container["resources"]["claims"] = [{"name": each} for each in claims]
        pod["resourceClaims"] = [
            {"name": each, "resourceClaimTemplateName": of} for each, of in claims.items()
        ]
    spec: Obj = {
        "suspend": True,
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {
            "metadata": {"annotations": annotations},
            "spec": pod,
        },
    }
    if on_hub:
        spec["managedBy"] = MULTIKUEUE
    meta = {"name": name, "namespace": namespace, "labels": {QUEUE_LABEL: queue, **(labels or {})}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
