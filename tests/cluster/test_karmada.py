"""The service beside Karmada's own definitions on a real API server: Karmada's controllers by hand.

What Karmada does is done by the test: a binding of a Job appears, a member's Job runs and ends.
The resolver is the project's own process.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from berthmaster.lab.controlplane.api import ApiError, documents
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import PodUse
from berthmaster.lib.messages.placement import Target
from tests.cluster.multikueue_bus import Bus
from tests.controlplane import frameworks
from tests.support import warm
from tests.support.builders import node, profile
from tests.support.patience import hang_s, wait_until
from tests.support.warm import Child

ROOT: Final = Path(__file__).resolve().parents[2]
USER: Final = "berthmaster-karmada"
WORK: Final = "/apis/work.karmada.io/v1alpha2"
POLICY: Final = "/apis/policy.karmada.io/v1alpha1"
CLUSTERS: Final = "/apis/cluster.karmada.io/v1alpha1/clusters"


def definitions() -> list[Any]:
    """Karmada's own: of the folder that KARMADA_CRDS names, else of its Go module."""
    if folder := os.environ.get("KARMADA_CRDS"):
        files = (Path(folder) / Path(each).name for each in ("work", "policy"))
        return [
            one for each in files for file in sorted(each.glob("*.yaml")) for one in documents(file)
        ]
    return frameworks.definitions_of(frameworks.KARMADA)


def define(planes: Planes) -> None:
    """Karmada's kinds, and the service's rights."""
    try:
        found = definitions()
    except Unavailable as error:
        pytest.skip(str(error))
    rights = documents(ROOT / "deploy/policies/karmada.yaml")
    planes.hub.apply([*found, *documents(ROOT / "tests/cluster/crds/karmada.yaml"), *rights])


class Rig:
    """A control plane with Karmada's kinds, a bus, a resolver and the service."""

    def __init__(self, planes: Planes, namespace: str, bus: Bus, folder: Path) -> None:
        self.api, self.namespace, self.bus, self.folder = planes.hub.api, namespace, bus, folder
        self.children: dict[str, Child] = {}
        define(planes)
        self.kubeconfig = planes.hub.kubeconfig_for(USER)

    def until(self, what: Any, words: str) -> None:
        wait_until(what, words)

    def start(self, *services: str) -> None:
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        common = ["--nats-url", self.bus.url, "--http-port", "-1", "--log-format", "text"]
        told = {"resolver": [], "karmada": ["--kubeconfig", str(self.kubeconfig)]}
        for service in services:
            with (self.folder / f"{service}.log").open("ab") as log:
                argv = ["serve", service, *common, *told[service]]
                self.children[service] = warm.berth(*argv, output=log, env=env)

    def kill(self, service: str) -> None:
        """kill -9."""
        self.children[service].kill()
        self.children[service].wait(hang_s())

    def end(self) -> None:
        for service, child in self.children.items():
            if child.poll() is None:
                self.kill(service)

    # ---- what people and Karmada do

    def member(self, name: str) -> None:
        body = {"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster"}
        made = {**body, "metadata": {"name": name}, "spec": {"syncMode": "Push"}}
        self.api.create(CLUSTERS, made)  # discovery tells of a new kind somewhat later

    def policy(self, name: str, **labels: str) -> None:
        """One that names us as its scheduler; what it selects is the test's to know."""
        told = {f"berthmaster.io/{each}": text for each, text in labels.items()}
        self.api.create(
            f"{POLICY}/namespaces/{self.namespace}/propagationpolicies",
            {
                "apiVersion": "policy.karmada.io/v1alpha1",
                "kind": "PropagationPolicy",
                "metadata": {"name": name, "namespace": self.namespace, "labels": told},
                "spec": {
                    "schedulerName": "berthmaster",
                    "resourceSelectors": [{"apiVersion": "batch/v1", "kind": "Job"}],
                },
            },
        )

    def bound(self, job: str, *, gpus: int = 8, policy: str = "plain", **spec: Any) -> str:
        """As Karmada's detector makes it of a Job and its policy; the workload's id."""
        by = "propagationpolicy.karmada.io"
        of = {"apiVersion": "batch/v1", "kind": "Job", "namespace": self.namespace, "name": job}
        asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
        made = self.api.create(
            f"{WORK}/namespaces/{self.namespace}/resourcebindings",
            {
                "apiVersion": "work.karmada.io/v1alpha2",
                "kind": "ResourceBinding",
                "metadata": {
                    "name": f"{job}-job",
                    "namespace": self.namespace,
                    "annotations": {f"{by}/namespace": self.namespace, f"{by}/name": policy},
                },
                "spec": {
                    "resource": of,
                    "replicas": 1,
                    "replicaRequirements": {"resourceRequest": asked},
                    "schedulerName": "berthmaster",
                    "placement": {"clusterAffinity": {"clusterNames": [self.cluster]}},
                }
                | spec,
            },
        )
        return workload_id(job, made["metadata"]["uid"])

    @property
    def cluster(self) -> str:
        return f"m-{self.namespace}"

    def path(self, job: str) -> str:
        return f"{WORK}/namespaces/{self.namespace}/resourcebindings/{job}-job"

    def binding(self, job: str) -> Any:
        return self.api.get(self.path(job))

    def state(self, workload: str) -> State | None:
        work = self.bus.folds.get(key(self.namespace, workload))
        return work.state if work is not None else None

    def waits(self, workload: str) -> bool:
        return self.state(workload) is State.QUEUED

    def said(self, job: str) -> tuple[str, str]:
        """Reason and message of Karmada's condition Scheduled."""
        found = self.binding(job).get("status", {}).get("conditions") or ()
        mine = (one for one in found if one["type"] == "Scheduled")
        return next(((one["reason"], one["message"]) for one in mine), ("", ""))

    def where(self, job: str) -> list[str]:
        return [one["name"] for one in self.binding(job)["spec"].get("clusters") or ()]

    def held(self, job: str) -> bool:
        return bool((self.binding(job)["spec"].get("suspension") or {}).get("scheduling"))

    def stands(self, job: str, **status: Any) -> None:
        """As Karmada reflects the member's Job; nothing: it is not there any more."""
        items = [{"clusterName": self.cluster, "applied": True, "status": status}] if status else []
        self.api.merge(f"{self.path(job)}/status", {"status": {"aggregatedStatus": items}})

    def nodes(self, *uses: PodUse) -> None:
        report = node(self.cluster, "n1", gpus=8)
        self.bus.tell(msgspec.structs.replace(report, pods=uses))

    # ---- what members do

    def runs(self, job: str, workload: str, attempt: int = 1) -> None:
        """Its pod is on the member's node, labelled on its way, and the service heard of it."""
        self.until(lambda: self.where(job) == [self.cluster], f"{job} is let go")
        assert not self.held(job)
        of = PodUse(tenant=self.namespace, workload=workload, attempt=attempt, pod=f"{job}-x7k2p")
        self.nodes(msgspec.structs.replace(of, gpu_milli=1000, gpus=tuple(range(8))))
        self.stands(job, active=1)
        self.until(lambda: self.state(workload) is State.RUNNING, f"{job} runs")

    def ends(self, job: str) -> None:
        self.nodes()
        self.stands(job, succeeded=1, conditions=[{"type": "Complete", "status": "True"}])


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    with Bus(tmp_path) as bus:
        made = Rig(planes, namespace, bus, tmp_path)
        try:
            made.member(made.cluster)
            bus.living.add(made.cluster)
            bus.tell(profile(made.cluster))
            made.nodes()
            made.policy("plain")
            made.start("resolver", "karmada")
            yield made
        finally:
            made.end()


def test_bindings_are_held_and_let_go_in_our_order_whatever_is_killed_taken_or_deleted(
    rig: Rig,
) -> None:
    rig.policy("urgent", priority="100")
    others = rig.bound("theirs", schedulerName="default-scheduler")
    first = rig.bound("first")
    rig.runs("first", first)
    placed = rig.bus.folds[key(rig.namespace, first)]
    assert placed.target == Target(via="hub", namespace=rig.namespace)
    assert rig.said("first")[0] == "Success"

    # There is no room for more: both are held, and say where to ask why.
    low, high = rig.bound("low"), rig.bound("high", policy="urgent")
    dropped = rig.bound("dropped", policy="urgent")
    for job, workload in (("low", low), ("high", high), ("dropped", dropped)):
        rig.until(lambda w=workload: rig.waits(w), f"{job} waits")
        rig.until(lambda j=job: rig.said(j)[0] == "WaitsItsTurn", "says so")
        assert f"berth why {workload}" in rig.said(job)[1]
        assert (rig.held(job), rig.where(job)) == (True, [])

    # Deleted while it is held: over at once.
    rig.api.delete(rig.path("dropped"))
    rig.until(lambda: rig.state(dropped) is State.CANCELLED, "its workload is over with it")

    # The service is killed, and the first ends meanwhile: the next one is that of more priority.
    rig.kill("karmada")
    rig.ends("first")
    rig.start("karmada")
    rig.until(lambda: rig.state(first) is State.SUCCEEDED, "the first has ended")
    rig.runs("high", high)
    assert (rig.held("low"), rig.where("low")) == (True, [])

    # Karmada takes it from its cluster, as it does when that fails: it waits until nothing is left,
    # and goes anew, before the other again.
    rig.api.merge(rig.path("high"), {"spec": {"clusters": None}})
    rig.until(lambda: rig.held("high"), "it is held again")
    assert rig.state(high) is State.RUNNING  # its pod is there
    rig.stands("high")
    rig.nodes()
    rig.runs("high", high, attempt=2)
    path = f"{POLICY}/namespaces/{rig.namespace}/overridepolicies/{high}"
    [rule] = rig.api.get(path)["spec"]["overrideRules"]
    paths = {one["path"]: one["value"] for one in rule["overriders"]["plaintext"]}
    labels = "/spec/template/metadata/labels/berthmaster.io~1"
    assert (paths[f"{labels}workload"], paths[f"{labels}attempt"]) == (high, "2")

    # Deleted while it runs: over once no pod of it is left, and not before.
    rig.api.delete(rig.path("high"))
    time.sleep(0.5)
    assert rig.state(high) is State.RUNNING
    rig.nodes()
    rig.runs("low", low)
    assert rig.state(high) is State.CANCELLED

    # Whose scheduler we are not is left as it was.
    assert rig.state(others) is None
    assert "suspension" not in rig.binding("theirs")["spec"]
    assert all(one in (Verdict.COUNTED, Verdict.VOID) for one in rig.bus.verdicts)


def test_what_cannot_be_placed_is_held_and_says_what_would_be_right(rig: Rig) -> None:
    def bad(name: str, words: str, **spec: Any) -> None:
        rig.bound(name, **spec)
        rig.until(lambda: rig.said(name)[0] == "CannotBePlaced", f"{name} is told")
        assert words in rig.said(name)[1]
        assert (rig.held(name), rig.where(name)) == (True, [])

    bad("silent", "replicaRequirements: none: its pods must say", replicaRequirements=None)
    below = {"resourceRequest": {"nvidia.com/gpu": "-8"}}
    bad("below", "replicaRequirements: nvidia.com/gpu: '-8'", replicaRequirements=below)
    bad("none", "replicas: 0: right are 1 to", replicas=0)
    server = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "server"}
    bad("server", "resource: apps/v1 Deployment: right is a Job of batch/v1", resource=server)
    spread = {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 2}]}
    bad("spread", "spreadConstraints: minGroups 2 by cluster", placement=spread)
    nowhere = {"clusterAffinity": {"clusterNames": ["atlantis"]}}
    bad("nowhere", "no member cluster matches placement.clusterAffinity", placement=nowhere)
    known = [name for name in rig.bus.folds if name.startswith(f"{rig.namespace}/")]
    assert not known  # none of them was made known; a test that failed may have left others

    # A word of its policy's that is none limits nothing: it is told, and the job goes.
    rig.policy("odd", priority="high")
    odd = rig.bound("odd", policy="odd")
    rig.runs("odd", odd)
    events = f"/api/v1/namespaces/{rig.namespace}/events"

    def notes() -> list[str]:
        found = rig.api.items(events)
        return [one["note" if "note" in one else "message"] for one in found]

    rig.until(lambda: any("'high' is no whole number" in one for one in notes()), "it is told")

    # What is put right goes its way.
    rig.ends("odd")
    asked = {"resourceRequest": {"nvidia.com/gpu": "8"}}
    rig.api.merge(rig.path("silent"), {"spec": {"replicaRequirements": asked}})
    rig.until(lambda: rig.where("silent") == [rig.cluster], "silent is let go")


def test_the_role_beside_karmada_allows_nothing_but_holding_and_letting_go(planes: Planes) -> None:
    """Asked of the API server as the service's user, whatever else stands there."""
    define(planes)
    api = planes.hub.api_for(USER)

    def may(verb: str, group: str, resource: str, sub: str = "") -> bool:
        asked = {"verb": verb, "group": group, "resource": resource, "namespace": "any"}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked | ({"subresource": sub} if sub else {})},
        }
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    work, policy = "work.karmada.io", "policy.karmada.io"
    assert may("patch", work, "resourcebindings")
    assert may("patch", work, "resourcebindings", "status")
    assert may("create", policy, "overridepolicies")
    for verb in ("create", "delete", "deletecollection"):
        assert not may(verb, work, "resourcebindings")
    for group, resource in (
        *((work, "works"), (work, "clusterresourcebindings"), ("batch", "jobs")),
        *(("", "pods"), ("", "secrets"), ("", "serviceaccounts")),
        *((policy, "propagationpolicies"), (policy, "clusteroverridepolicies")),
        *(("cluster.karmada.io", "clusters"), ("rbac.authorization.k8s.io", "clusterroles")),
    ):
        for verb in ("create", "patch", "update", "delete"):
            assert not may(verb, group, resource), f"{verb} {resource}"
    assert not may("list", "", "secrets")
    assert not may("get", "", "secrets")
    assert not may("delete", policy, "overridepolicies")


def override(namespace: str, **changes: Any) -> dict[str, Any]:
    """An OverridePolicy as the service makes it, with other members."""
    path = "/spec/template/metadata/labels/berthmaster.io~1tenant"
    label = {"path": path, "operator": "add", "value": "acme"}
    owner = {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding"}
    return {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "OverridePolicy",
        "metadata": {
            "name": "train",
            "namespace": namespace,
            "ownerReferences": [owner | {"name": "train-job", "uid": "u"}],
        },
        "spec": {
            "resourceSelectors": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train"}],
            "overrideRules": [{"overriders": {"plaintext": [label]}}],
        }
        | changes,
    }


def plaintext(path: str, operator: str = "add", value: Any = "x") -> dict[str, Any]:
    """A spec's rules that change one place."""
    one = {"path": path, "operator": operator, "value": value}
    return {"overrideRules": [{"overriders": {"plaintext": [one]}}]}


def test_its_override_policies_add_labels_of_ours_and_nothing_else(
    planes: Planes, namespace: str
) -> None:
    """The right to make them reaches all namespaces, so a policy says which ones."""
    define(planes)
    api = planes.hub.api_for(USER)
    path = f"/apis/policy.karmada.io/v1alpha1/namespaces/{namespace}/overridepolicies"
    labels = "/spec/template/metadata/labels/"
    job = {"apiVersion": "batch/v1", "kind": "Job"}
    image = {"imageOverrider": [{"component": "Registry", "operator": "replace", "value": "evil"}]}
    command = {"commandOverrider": [{"containerName": "main", "operator": "add", "value": ["x"]}]}

    def refused(policy: dict[str, Any]) -> str:
        try:
            api.create(path, policy, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    foreign = override(namespace)
    foreign["metadata"]["ownerReferences"][0]["kind"] = "ConfigMap"
    ownerless = override(namespace)
    ownerless["metadata"]["ownerReferences"] = []
    adds, selects, owned = "adds labels berthmaster.io/", "selects one object", "has one owner"
    spec = "/spec/template/spec/containers/0/image"
    # A policy counts some moments after it was made.
    wait_until(lambda: adds in refused(override(namespace, **plaintext(spec))), "it counts")
    assert refused(override(namespace)) == ""
    assert refused(override(namespace, overriders={})) == ""  # as Karmada's webhook writes it
    for policy, words in (
        (override(namespace, **plaintext(spec, "replace")), adds),
        (override(namespace, **plaintext(labels + "app")), adds),
        (override(namespace, **plaintext(labels + "berthmaster.io~1tenant", "remove")), adds),
        (override(namespace, **plaintext(labels + "berthmaster.io~1x/../../../spec")), adds),
        (override(namespace, overrideRules=[{"overriders": image}]), adds),
        (override(namespace, overrideRules=[{"overriders": command}]), adds),
        (override(namespace, overriders=image), adds),
        (override(namespace, resourceSelectors=[]), selects),
        (override(namespace, resourceSelectors=[job]), selects),
        (
            override(namespace, resourceSelectors=[job | {"name": "a"}, job | {"name": "b"}]),
            selects,
        ),
        (override(namespace, resourceSelectors=[job | {"name": "a", "namespace": "x"}]), selects),
        (foreign, owned),
        (ownerless, owned),
    ):
        assert words in refused(policy), policy

    # One that somebody else has made stays as it is.
    theirs = override(namespace, **plaintext(spec))
    del theirs["metadata"]["ownerReferences"]  # such an owner would be looked for, and not be found
    planes.hub.api.create(path, theirs)
    with pytest.raises(ApiError, match="has one owner"):
        api.merge(f"{path}/train", override(namespace))
