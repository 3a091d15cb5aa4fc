"""Checks and Placements that are wrong, on a real hub without a Kueue: each is told on the check,
spoils nothing else, and is well again when it is put right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.api import Api
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.cleaning import remove_all
from berthmaster.lab.controlplane.kueue.setup import API, SYSTEM
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.admitting import (
    OCM,
    USER,
    Desk,
    Ocm,
    bind,
    by_placement,
    may_look_at,
    our_check,
)
from tests.cluster.multikueue_bus import Bus
from tests.support.patience import Hung, wait_until

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KUEUE = "kueue.x-k8s.io"

# (verb, group, resource, in Kueue's namespace): what the controller has no use for.
NEVER = (
    ("list", "", "secrets", True),
    ("watch", "", "secrets", True),
    ("get", "", "secrets", False),
    ("create", "", "secrets", True),
    ("patch", "", "secrets", True),
    ("delete", "", "secrets", True),
    ("create", "", "pods", True),
    ("create", "", "serviceaccounts/token", True),
    ("create", KUEUE, "workloads", False),
    ("patch", KUEUE, "workloads", False),
    ("delete", KUEUE, "workloads", False),
    ("patch", KUEUE, "clusterqueues", False),
    ("create", KUEUE, "admissionchecks", False),
    ("patch", KUEUE, "admissionchecks", False),
    ("delete", KUEUE, "admissionchecks", False),
    ("patch", KUEUE, "multikueueclusters", False),
    ("delete", KUEUE, "multikueueclusters", False),
    ("patch", OCM, "placements", True),
    ("patch", OCM, "placementdecisions", True),
    ("list", OCM, "placements", False),
    ("get", OCM, "managedclusters", False),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", False),
)


class Stage:
    """A hub's API server, a bus, and the controller."""

    def __init__(self, api: Api, desk: Desk, ocm: Ocm) -> None:
        self.api, self.desk, self.ocm = api, desk, ocm

    def cluster(self, name: str) -> str:
        """A MultiKueueCluster that nobody reaches."""
        full = self.ocm.name(name)
        self.api.apply(builders.cluster(full, "nobody-has-it"))
        return full

    def check(self, short: str, parameters: dict[str, str] | None) -> str:
        name = self.ocm.name(short)
        self.api.apply(our_check(name, parameters))
        return name

    def told(self, check: str, status: str, reason: str, *words: str) -> None:
        """Until a check's condition says so."""

        def so() -> bool:
            found = self.desk.active(check)
            return found[:2] == (status, reason) and all(one in found[2] for one in words)

        try:
            wait_until(so, f"{check} is {reason}", poll_s=0.1)
        except Hung as error:
            raise AssertionError(
                f"{self.desk.active(check)}: {error}\n{self.desk.said()}"
            ) from None


@pytest.fixture
def stage(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    hub = planes.hub
    bind(hub.api)
    ocm = Ocm(hub.api, namespace)
    with Bus(tmp_path) as bus:
        desk = Desk(hub.api, hub.kubeconfig_for(USER), bus.url, tmp_path)
        desk.start()
        try:
            yield Stage(hub.api, desk, ocm)
        finally:
            desk.kill_all()
            ocm.clean()
            for plural in ("admissionchecks", "multikueueconfigs", "multikueueclusters"):
                remove_all(hub.api, f"{API}/{plural}", namespace)


def test_wrong_checks_and_placements_are_told_one_by_one_and_cured(stage: Stage) -> None:
    ocm, api = stage.ocm, stage.api
    one = stage.cluster("one")
    good = ocm.place("good", [one])
    right = f"right is {{apiGroup: {OCM}, kind: Placement, name: …}}"

    bare = stage.check("bare", None)
    other = stage.check("other", {"apiGroup": "core", "kind": "Secret", "name": "x"})
    config = stage.check("config", {"apiGroup": KUEUE, "kind": "MultiKueueConfig", "name": "x"})
    missing = stage.check("missing", by_placement("nowhere"))
    stage.told(bare, "False", "PlacementError", "spec.parameters is missing", right)
    stage.told(other, "False", "PlacementError", "names a core/Secret", right)
    stage.told(config, "False", "PlacementError", f"names a {KUEUE}/MultiKueueConfig", right)
    words = f"there is no Placement {SYSTEM}/nowhere"
    stage.told(missing, "False", "PlacementNotFound", words, f"in namespace {SYSTEM} only")

    # In another namespace it is not seen, whoever may see it there.
    elsewhere = ocm.prefix
    meta = {"name": "away", "namespace": elsewhere}
    api.apply({"apiVersion": f"{OCM}/v1beta1", "kind": "Placement", "metadata": meta, "spec": {}})
    away = stage.check("away", by_placement("away"))
    stage.told(away, "False", "PlacementNotFound", f"there is no Placement {SYSTEM}/away")

    # One that nobody evaluates; one that selects nobody; one whose scheduler complains.
    unseen = stage.check("unseen", by_placement(ocm.place("unseen")))
    stage.told(unseen, "False", "PlacementDecisionError", "no controller has evaluated it yet")
    empty = stage.check("empty", by_placement(ocm.place("empty", [])))
    ocm.say("empty", "PlacementSatisfied", False, "NoManagedClusterMatched", "none matches")
    stage.told(empty, "False", "NoClustersAvailable", "NoManagedClusterMatched: none matches")
    broken = stage.check("broken", by_placement(ocm.place("broken", [one])))
    ocm.say("broken", "PlacementMisconfigured", True, "InvalidCEL", "expression 1: no such field")
    stage.told(broken, "False", "PlacementError", "misconfigured: expression 1: no such field")

    # A decision that names a cluster without a Secret; the rest is listed.
    strange = stage.check("strange", by_placement(ocm.place("strange", [one, "stranger"])))
    stage.told(strange, "True", "Active", "no MultiKueueCluster and no kubeconfig Secret: stranger")
    assert stage.desk.listed(strange) == one
    nobody = stage.check("nobody", by_placement(ocm.place("nobody", ["stranger"])))
    stage.told(nobody, "False", "NoClustersAvailable", "selects stranger")
    assert stage.desk.listed(nobody) == "none"

    # Each is cured by itself, and nothing of it disturbed the others.
    for name in (bare, other, config, missing):
        parameters = {"spec": {"parameters": by_placement(good)}}
        api.merge(f"{API}/admissionchecks/{name}", parameters)
        stage.told(name, "True", "Active", one)
        assert stage.desk.listed(name) == one
    ocm.say("broken", "PlacementMisconfigured", False, "Succeeded", "")
    stage.told(broken, "True", "Active", one)
    wait_until(
        lambda: "PlacementNotFound" in dict(stage.desk.events(missing)),
        "an event for people",
    )
    assert stage.desk.stop() == 0


def test_names_at_their_limits_a_hundred_and_one_clusters_and_somebody_else_s_configuration(
    stage: Stage,
) -> None:
    ocm, api = stage.ocm, stage.api
    names = [stage.cluster(f"c{number:03}") for number in range(101)]
    many = stage.check("many", by_placement(ocm.place("many", names[:100], names[100:])))
    stage.told(many, "True", "Active", names[0])
    assert stage.desk.listed(many).split() == names[:20]
    status, reason, message = stage.desk.active(many, "Truncated")
    assert (status, reason) == ("True", "TooManyClusters")
    assert "81 more are selected and left out" in message
    assert f"{names[20]}, " in message

    # With the second page only, the first twenty drain; none of them is used, so all leave.
    ocm.decide("many", names[99:100], names[100:])
    wait_until(lambda: stage.desk.listed(many).split() == names[99:], "only those are left")
    wait_until(lambda: stage.desk.active(many, "Truncated") == ("", "", ""), "no more")

    # Names as long as the API takes them, of a check and of a cluster.
    parameters = by_placement(ocm.place("long", [names[0]]))
    fits, too_long = (stage.check("x" * (n - len(ocm.prefix) - 1), parameters) for n in (63, 64))
    dotted = stage.check("a.b", parameters)
    assert (len(fits), len(too_long)) == (63, 64)
    stage.told(fits, "True", "Active", names[0])
    stage.told(too_long, "False", "MultiKueueConfigError", "up to 63 of a-z, 0-9 and -")
    stage.told(dotted, "False", "MultiKueueConfigError", "up to 63 of a-z, 0-9 and -")
    far = stage.cluster("y" * (253 - len(ocm.prefix) - 1))
    ocm.decide("long", [far, "z" * 253])
    wait_until(lambda: stage.desk.listed(fits) == far, "a name of 253 characters")
    stage.told(fits, "True", "Active", "no MultiKueueCluster and no kubeconfig Secret: zzz")

    # Somebody else's configuration of a check's name is left as it is.
    theirs = ocm.name("theirs")
    api.apply(builders.config(theirs, [names[7]]))
    stage.check("theirs", parameters)
    stage.told(theirs, "False", "MultiKueueConfigError", "is there and is not ours")
    assert stage.desk.listed(theirs) == names[7]
    hand_over = {
        "labels": {"app.kubernetes.io/managed-by": "berthmaster-admission"},
        "annotations": {"berthmaster.io/admission-check": theirs},
    }
    api.merge(f"{API}/multikueueconfigs/{theirs}", {"metadata": hand_over})
    stage.told(theirs, "True", "Active", far)
    wait_until(lambda: stage.desk.listed(theirs) == far, "what was listed has left")

    # Two checks over one Placement each have their own; a deleted check takes its own along.
    twin = stage.check("twin", parameters)
    stage.told(twin, "True", "Active", far)
    api.delete(f"{API}/admissionchecks/{twin}")
    wait_until(lambda: stage.desk.listed(twin) == "none", "its configuration is gone")
    assert stage.desk.listed(fits) == far


def test_a_cluster_whose_secret_is_there_gets_its_multikueuecluster(stage: Stage) -> None:
    ocm, api = stage.ocm, stage.api
    name = ocm.name("new")
    meta = {"name": f"multikueue-{name}", "namespace": SYSTEM}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta}
    api.apply({**secret, "stringData": {"kubeconfig": "hush"}})
    may_look_at(api, meta["name"])
    try:
        check = stage.check("from-secret", by_placement(ocm.place("from-secret", [name])))
        stage.told(check, "True", "Active", name)
        made = api.get(f"{API}/multikueueclusters/{name}")
        where = {"locationType": "Secret", "location": f"multikueue-{name}"}
        assert made["spec"]["clusterSource"] == {"kubeConfig": where}
        assert "hush" not in stage.desk.said()
    finally:
        api.delete(api.path_of(secret))


@pytest.mark.parametrize(("verb", "group", "resource", "inside"), NEVER)
def test_the_controller_may_not(
    planes: Planes, verb: str, group: str, resource: str, inside: bool
) -> None:
    bind(planes.hub.api)
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": SYSTEM if inside else "",
    }
    spec = {"user": USER, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    assert planes.hub.api.create(REVIEWS, body)["status"]["allowed"] is False
