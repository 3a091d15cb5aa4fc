"""The chart's objects on real API servers: accepted as they stand, twice.

Their accounts may do what the services need and nothing of what a thief would like. By these
accounts alone the pods run jobs.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from berthmaster.cli.doctor.facts import Mode, Right
from berthmaster.cli.doctor.rights import AGENT_ACCOUNT, HUB_ACCOUNT, agent_rights, hub_rights
from berthmaster.lab.controlplane.api import Api
from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.resources import COSCHEDULING_POD_GROUPS, POD_GROUPS, SCHEDULING_WORKLOADS
from tests.cluster.deploying import (
    ONE,
    OURS,
    apply,
    bind_dispatching,
    bind_executor,
    deployed,
    hub_of,
    own_mounts,
    remove,
    serving,
)
from tests.support.chart import WITHOUT, Manifest, Values, render
from tests.support.patience import wait_until

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MODES: tuple[Mode, ...] = ("observe", "dispatch")
KUEUE = "kueue.x-k8s.io"
MORE_OF_A_HUB: Final[Values] = {
    "hub": {"services": ["login", "admission", "karmada", "ocm"], "webhooks": True},
    **{name: {"enabled": True, "replicas": 2} for name in ("placement", "dashboard")},
}
MORE_OF_AN_AGENT: Final[Values] = {
    "worker": {"services": ["claims"], "login": True, "telemetry": "dcgm", "replicas": 2}
}
OWN_BUS: Final[Values] = {"bus": {"mode": "existing", "url": "tls://nats.example.com:4222"}}

# (verb, group, resource): what neither account may do anywhere, whatever the mode.
NEVER = (
    ("get", "", "secrets"),
    ("list", "", "secrets"),
    ("create", "", "pods"),
    ("create", "", "pods/exec"),
    ("delete", "", "pods"),
    ("create", "", "serviceaccounts/token"),
    ("patch", "", "nodes"),
    ("delete", "", "nodes"),
    ("create", "", "namespaces"),
    ("delete", "", "namespaces"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ("impersonate", "", "users"),
    ("create", "apps", "deployments"),
    ("create", "batch", "cronjobs"),
    ("patch", KUEUE, "clusterqueues"),
    ("patch", KUEUE, "multikueueclusters"),
    ("create", KUEUE, "workloads"),
    ("delete", KUEUE, "workloads"),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("approve", "certificates.k8s.io", "signers"),
)


def allowed(api: Api, account: str, right: Right) -> bool:
    """What the API server's authorizer says."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    spec = {
        "user": f"system:serviceaccount:{OURS}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{OURS}"],
        "resourceAttributes": attributes,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(api.create(REVIEWS, body)["status"]["allowed"])


def granted(api: Api, account: str, rights: list[Right]) -> list[str]:
    """Those of them that the account has."""
    return [str(right) for right in rights if allowed(api, account, right)]


def forbidden(namespace: str = "") -> list[Right]:
    """What nobody of ours may."""
    return [
        Right(verb=verb, group=group, resource=resource, namespace=namespace)
        for verb, group, resource in NEVER
    ]


def pods_of(role: str, values: Values = WITHOUT) -> list[Manifest]:
    """The pods that the controllers would make in our namespace."""
    made: list[Manifest] = []
    for owner in render(role, values):
        if owner["kind"] not in ("Deployment", "StatefulSet"):
            continue
        template = owner["spec"]["template"]
        spec: dict[str, Any] = template["spec"]
        claims = [
            {"name": each["metadata"]["name"], "persistentVolumeClaim": {"claimName": "x"}}
            for each in owner["spec"].get("volumeClaimTemplates", ())
        ]
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "try", "labels": template["metadata"]["labels"]},
                "spec": spec | {"volumes": [*spec["volumes"], *claims]},
            }
        )
    return made


def test_the_agent_is_accepted_twice_and_may_make_jobs_only_where_it_is_bound(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    try:
        first = list(apply(worker, "worker"))
        again = list(apply(worker, "worker"))
        assert [each["metadata"]["uid"] for each in again] == [
            each["metadata"]["uid"] for each in first
        ]
        generations = [each["metadata"].get("generation") for each in first]
        assert [each["metadata"].get("generation") for each in again] == generations

        # Its pod is one that the namespace's own Pod Security takes.
        pods = f"/api/v1/namespaces/{OURS}/pods"
        for values in (WITHOUT, MORE_OF_AN_AGENT):
            for pod in pods_of("worker", values):
                worker.api.create(pods, pod, dryRun="All")

        api = worker.api
        groups = (POD_GROUPS, SCHEDULING_WORKLOADS, COSCHEDULING_POD_GROUPS)
        everywhere = agent_rights((), claims=True)
        of_one = agent_rights([namespace], claims=True, groups=groups)
        in_one = [right for right in of_one if right.namespace]
        assert granted(api, AGENT_ACCOUNT, everywhere) == [str(right) for right in everywhere]
        assert granted(api, AGENT_ACCOUNT, in_one) == read_anywhere(in_one)
        bind_executor(worker, namespace)
        wait_until(lambda: allowed(api, AGENT_ACCOUNT, in_one[-1]), "the binding counts")
        assert granted(api, AGENT_ACCOUNT, in_one) == [str(right) for right in in_one]
        assert granted(api, AGENT_ACCOUNT, forbidden(namespace)) == []
        assert granted(api, AGENT_ACCOUNT, forbidden()) == []
        elsewhere = [right for right in agent_rights(["default"]) if right.namespace]
        assert granted(api, AGENT_ACCOUNT, elsewhere) == read_anywhere(elsewhere)
    finally:
        remove(worker, "worker")


def read_anywhere(rights: list[Right]) -> list[str]:
    """What the agent has of them without any binding: the figures of jobs need their owners."""
    reads = ("get", "list", "watch")
    return [str(one) for one in rights if one.resource == "jobs" and one.verb in reads]


def test_each_mode_of_the_hub_is_accepted_and_grants_what_it_needs_and_not_the_next_ones(
    planes: Planes, namespace: str
) -> None:
    hub = planes.hub
    for mode in MODES:
        values = hub_of(mode)
        try:
            first = list(apply(hub, "hub", values))
            again = list(apply(hub, "hub", values))
            assert [each["metadata"]["uid"] for each in again] == [
                each["metadata"]["uid"] for each in first
            ]
            wanted = hub_rights(mode, ())
            last = wanted[-1]  # an authorizer needs a moment to hear of a new binding
            wait_until(lambda: allowed(hub.api, HUB_ACCOUNT, last), f"rights of {mode}")  # noqa: B023
            assert granted(hub.api, HUB_ACCOUNT, wanted) == [str(right) for right in wanted]
            mine = {str(right) for right in wanted}
            more = [
                right
                for other in MODES
                for right in hub_rights(other, ("default",))
                if str(right) not in mine and right.group == KUEUE
            ]
            assert granted(hub.api, HUB_ACCOUNT, more) == []
            assert granted(hub.api, HUB_ACCOUNT, forbidden()) == []
            assert granted(hub.api, HUB_ACCOUNT, forbidden(namespace)) == []
            assert granted(hub.api, "berth-accounts", forbidden(OURS)) == []
            if mode == "dispatch":
                inside = [right for right in hub_rights(mode, [namespace]) if right.namespace]
                assert granted(hub.api, HUB_ACCOUNT, inside) == []
                bind_dispatching(hub, namespace)
                wait_until(lambda: allowed(hub.api, HUB_ACCOUNT, inside[-1]), "it is bound")  # noqa: B023
                assert granted(hub.api, HUB_ACCOUNT, inside) == [str(right) for right in inside]
                assert granted(hub.api, HUB_ACCOUNT, more) == []
            if mode == "observe":
                pods = f"/api/v1/namespaces/{OURS}/pods"
                for services in (WITHOUT, MORE_OF_A_HUB, OWN_BUS):
                    for account in render("hub", services):
                        if account["kind"] == "ServiceAccount":
                            hub.api.apply(account)
                    for pod in pods_of("hub", services):
                        hub.api.create(pods, pod, dryRun="All")
        finally:
            remove(hub, "hub", values)


def test_containers_of_both_sides_run_a_job_of_kubectl_and_one_of_nats(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    hub_plane, worker = planes.hub, planes[ONE]
    make_nodes(worker, [gpu_node("a", gpus=8)])
    options = Options(dispatcher="berthmaster.io/dispatcher")
    with ExitStack() as owned:
        owned.enter_context(deployed(hub_plane, "hub", hub_of("dispatch")))
        owned.enter_context(deployed(worker, "worker"))
        bind_executor(worker, namespace)
        bind_dispatching(hub_plane, namespace)
        k = owned.enter_context(Kueue(planes, namespace, options=options, clusters=[ONE]))
        both = serving(owned, planes, namespace, tmp_path, own_mounts(), mode="dispatch")
        hub, agent, berth, secret = both

        k.submit("from-kubectl", requests={"cpu": "1", "nvidia.com/gpu": "1"}, run_s="2")
        hub.until(lambda: k.cluster_of("from-kubectl") == ONE, "it is dispatched")
        hub.until(lambda: k.has("from-kubectl", "Finished"), "its end is on the hub")

        berth("queue", "set", "team", "--via", "direct", "--place", namespace)
        asks = ("--queue", "team", "--gpus", "1", "--image", "busybox")
        berth("submit", "--id", "from-nats", *asks, command=("--", "sleep", "5"))

        def state(*argv: str) -> str:
            return str(json.loads(berth("job", *argv, "--json"))["workload"]["state"])

        agent.until(lambda: state("from-nats") == "succeeded", "the request has run")
        jobs = json.loads(berth("jobs", "--tenant", namespace, "--json"))["workloads"]
        [mine] = [one["id"] for one in jobs if "from-kubectl" in one["id"]]
        hub.until(lambda: state(mine, "--tenant", namespace) == "succeeded", "so says the bus")
        assert {*agent.end().values(), *hub.end().values()} == {0}
        for side in (hub, agent):
            assert "orbidden" not in side.log()
            assert not any(text in side.log() for text in secret["agent.creds"].split())
