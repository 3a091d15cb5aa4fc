"""The decisions of a Placement as PlacementDecisions of sig-multicluster."""

from berthmaster.hub.placement.core.instructions import PutSlice, Write
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Metadata
from tests.unit.hub.placement.hub import Hub
from tests.unit.hub.placement.objects import NAMESPACE, named, placement

FIRST = (NAMESPACE, "p-profiles-1")


def profile(name: str, namespace: str = NAMESPACE) -> ClusterProfile:
    return ClusterProfile(metadata=Metadata(name=name, namespace=namespace))


def served(hub: Hub) -> Hub:
    hub.core.serve_slices(True)
    return hub


def references(hub: Hub, slice_key: tuple[str, str] = FIRST) -> list[str]:
    """NAMESPACE/NAME of each profile."""
    return [
        f"{one.cluster_profile_ref.namespace}/{one.cluster_profile_ref.name}"
        for one in hub.slices[slice_key].decisions or ()
    ]


def test_slice_refers_to_existing_profiles_of_the_chosen_clusters() -> None:
    hub = served(Hub(*named("a", "b", "c"), placement()))
    for one in (profile("a"), profile("a", "elsewhere"), profile("b", "z"), profile("b", "y")):
        hub.set(one)
    assert hub.settle() == ["create p-decision-1", "status p", "create p-profiles-1"]
    made = hub.slices[FIRST]
    assert references(hub) == ["team/a", "y/b"]
    assert (made.scheduler_name, made.metadata.labels) == (
        "berthmaster",
        {
            "multicluster.x-k8s.io/decision-key": "p",
            "multicluster.x-k8s.io/decision-index": "0",
            "app.kubernetes.io/managed-by": "berthmaster",
        },
    )
    [owner] = made.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid, owner.controller) == (
        "Placement", "p", "uid-p", True,
    )  # fmt: skip
    [reason, _] = [one.reason for one in made.decisions or ()]
    [page] = hub.decisions.values()
    assert page.status is not None
    assert reason == (page.status.decisions or ())[0].reason

    # Profiles come and go.
    hub.set(profile("c"))
    assert hub.settle() == ["write p-profiles-1"]
    hub.drop(profile("a"))
    hub.drop(profile("b", "y"))
    hub.settle()
    assert references(hub) == ["elsewhere/a", "z/b", "team/c"]
    hub.set(profile("c"))
    assert hub.settle() == []


def test_slices_follow_pages_and_are_deleted_with_them() -> None:
    wanted = placement(decisionStrategy={"groupStrategy": {"clustersPerDecisionGroup": 1}})
    hub = served(Hub(*named("a", "b"), *map(profile, "ab"), wanted))
    hub.settle()
    assert [references(hub, key) for key in sorted(hub.slices)] == [["team/a"], ["team/b"]]
    assert hub.slices[NAMESPACE, "p-profiles-2"].metadata.labels[
        "multicluster.x-k8s.io/decision-index"
    ] == "1"  # fmt: skip
    hub.edit(placement(generation=2))
    hub.settle()
    assert (list(hub.slices), references(hub)) == ([FIRST], ["team/a", "team/b"])

    # A slice that another client changed is corrected, and back at OCM none stays.
    hub.core.on_object(hub.slices.pop(FIRST), gone=True)
    assert hub.settle() == ["create p-profiles-1"]
    hub.edit(placement(ours=False))
    hub.settle()
    assert (hub.slices, hub.pages()) == ({}, ["a,b"])


def test_hub_without_the_kind_gets_no_slices_until_it_serves_them() -> None:
    hub = Hub(*named("a"), profile("a"), placement())
    hub.settle()
    assert hub.slices == {}
    served(hub)
    assert hub.settle() == ["create p-profiles-1"]


def test_failing_slices_delay_no_decision() -> None:
    hub = served(Hub(*named("a"), profile("a"), placement()))

    def refuse(write: Write) -> str:
        return "denied" if isinstance(write, PutSlice) else ""

    hub.refuse = refuse
    hub.settle()
    assert (hub.pages(), hub.slices) == (["a"], {})
    for count in range(6):
        hub.set(named("b")[0])
        hub.now_s += 0.001  # within the pause of the slices
        hub.settle()
        assert hub.pages() == ["a,b"]
        assert hub.core.wake_at_s() > hub.now_s
        hub.now_s = hub.core.wake_at_s()
        hub.settle()
        assert len(hub.told("DecisionSlicesNotWritten")) == (count >= 3)
    hub.refuse = lambda write: ""
    hub.now_s = hub.core.wake_at_s()
    assert hub.settle() == ["create p-profiles-1"]
    assert references(hub) == ["team/a"]
