"""Access by ClusterProfiles: what the index makes of it, and what our own profiles say."""

from typing import Any

import msgspec
import pytest

from berthmaster.hub.credentials.core import manifests
from berthmaster.hub.credentials.core.described import access_provider, merged
from berthmaster.hub.credentials.core.instructions import Describe, Register
from berthmaster.hub.credentials.core.observed import (
    Description,
    Managed,
    Referenced,
    Registration,
    Token,
)
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kueue.multikueue import MultiKueueCluster
from tests.unit.hub.credentials.world import CLUSTER, HERE, World, book, bootstrap, make, profile

ENTRY = {
    "name": "kubeconfig-secretreader",
    "cluster": {
        "server": "https://east:6443",
        "certificate-authority-data": "Q0Egb2YgZWFzdA==",
        "extensions": [
            {
                "name": "client.authentication.k8s.io/exec",
                "extension": {
                    "name": "multikueue-east",
                    "key": "kubeconfig",
                    "namespace": "kueue-system",
                },
            }
        ],
    },
}
OTHER = {"name": "gke", "cluster": {"server": "https://east", "disable-compression": True}}


def ours(*providers: dict[str, Any], manager: str = "berthmaster") -> ClusterProfile:
    meta = {
        "name": CLUSTER,
        "namespace": "fleet",
        "labels": {"x-k8s.io/cluster-manager": manager},
    }
    spec = {"clusterManager": {"name": manager}}
    status = {"accessProviders": list(providers)}
    return make(ClusterProfile, {"metadata": meta, "spec": spec, "status": status})


def described(world: World) -> None:
    """Carry out the step as the writer does."""
    [step] = world.act()
    world.steps.clear()
    assert isinstance(step, Describe)
    wanted = step.wanted.provider
    world.core.index.put(ours(*([dict(wanted)] if wanted is not None else [])))
    world.done(step, Answer())


def test_profile_of_ours_names_the_secret_while_kueue_has_access() -> None:
    world = World()
    world.know()
    world.core.touched(world.core.index.put(ours()))
    world.give(bootstrap())
    while not isinstance((step := world.act()[0]), Describe):
        world.steps.clear()
        world.done(step, world.do(step))
    assert msgspec.json.decode(msgspec.json.encode(step.wanted)) == ["fleet", ENTRY]
    world.steps.clear()
    world.core.index.put(ours(ENTRY))
    world.done(step, Answer())
    assert world.settle() == []

    # A selector that lets go of the cluster, and the profile stays.
    world.known = False
    world.core.index._selector = book("berth=yes")._selector
    world.core.touched({CLUSTER})
    names = []
    while found := world.act():
        world.steps.clear()
        [step] = found
        names.append(type(step).__name__)
        if isinstance(step, Describe):
            assert step.wanted == Description("fleet", None)
            world.core.index.put(ours())
            world.done(step, Answer())
        else:
            world.done(step, world.do(step))
    assert names == ["Unregister", "Revoke", "Forget", "Describe"]


@pytest.mark.parametrize("manager", ["gke", "open-cluster-management"])
def test_profile_of_another_manager_is_never_written(manager: str) -> None:
    world = World()
    world.know()
    world.core.touched(world.core.index.put(ours(OTHER, manager=manager)))
    world.give(bootstrap())
    assert "Describe" not in world.settle()


def test_entries_of_other_providers_keep_every_field() -> None:
    wanted = access_provider(HERE, "kueue-system", "multikueue-east")
    found = merged([OTHER, {"name": "kubeconfig-secretreader"}], wanted)
    assert msgspec.json.decode(msgspec.json.encode(found)) == [OTHER, ENTRY]
    assert merged([OTHER, ENTRY], None) == [OTHER]


def test_bootstrap_secret_comes_before_an_access_provider() -> None:
    index = book()
    index.put(profile())
    plugin = Managed(HERE, Token("provider-1", "t"), provider="secretreader")
    index.provide(CLUSTER, plugin)
    assert index.observe(CLUSTER).source == plugin
    assert index.uses_plugin(CLUSTER)
    index.bootstrap(("ns", "boot"), CLUSTER, bootstrap())
    assert index.observe(CLUSTER).source == bootstrap()
    assert not index.uses_plugin(CLUSTER)


def registered(profile_name: str, reason: str = "") -> MultiKueueCluster:
    body = manifests.multikueue_cluster(CLUSTER, profile_name)
    message = "no exec config found"
    active = {"type": "Active", "status": "False", "reason": reason, "message": message}
    return make(MultiKueueCluster, {**body, "status": {"conditions": [active] if reason else []}})


def test_kueue_refusing_the_profile_is_reported() -> None:
    world = World()
    world.know()
    world.core.touched(world.core.index.provide(CLUSTER, Referenced(CLUSTER, "secretreader")))
    assert world.act() == [Register(CLUSTER, None, CLUSTER)]
    world.steps.clear()
    world.core.index.put(registered(CLUSTER))
    world.done(Register(CLUSTER, None, CLUSTER), Answer())
    assert world.settle() == []
    [shown] = world.core.statuses(world.now_s)
    assert (shown.stage.value, shown.by, shown.usable) == ("Held", "kueue", True)

    refused = registered(CLUSTER, "BadClusterProfile")
    world.core.touched(world.core.index.put(refused))
    assert world.settle() == []
    why = "BadClusterProfile: no exec config found"
    assert world.core.index.observe(CLUSTER).registered == Registration(True, "", "", why)
    assert [(one.reason, one.note) for one in world.events] == [
        ("ProfileRefused", f"Kueue does not use ClusterProfile east: {why}")
    ]
    [shown] = world.core.statuses(world.now_s)
    assert not shown.usable
