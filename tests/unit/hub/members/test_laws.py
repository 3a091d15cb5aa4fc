"""Whatever the objects of a hub say, its members go on."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.hub.members.core.membership import HubKind, HubMembership
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.mirror import Change
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.messages.families import FLEET_FACTS, encode
from tests.unit.worker.inventory.objects import NOW_S, STAMP
from tests.unit.worker.inventory.test_laws import CONDITIONS, TAINT, TEXT, changes, named

PROPERTIES = st.lists(st.fixed_dictionaries({"name": TEXT, "value": TEXT}), max_size=5)
HUB = st.lists(
    st.one_of(
        changes(
            HubKind.PROFILES,
            ClusterProfile,
            named(
                st.sampled_from(["east", "west"]),
                status=st.fixed_dictionaries({"properties": PROPERTIES, "conditions": CONDITIONS}),
            ),
        ),
        changes(
            HubKind.MANAGED,
            ManagedCluster,
            named(
                st.sampled_from(["east", "west"]),
                spec=st.fixed_dictionaries({"taints": st.lists(TAINT, max_size=2)}),
                status=st.fixed_dictionaries({"clusterClaims": PROPERTIES}),
            ),
        ),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(HUB)
def test_no_object_stops_members(story: list[tuple[HubKind, Change[Any]]]) -> None:
    hub = HubMembership()
    told = set()
    for kind, change in story:
        hub.take(kind, change)
        told |= set(hub.changes())
    assert set(hub.everything()) <= told
    for subject in told:
        answer = hub.fact(subject, STAMP, NOW_S)
        assert answer is not None
        assert FLEET_FACTS.decode(encode(answer[0])) == answer[0]
