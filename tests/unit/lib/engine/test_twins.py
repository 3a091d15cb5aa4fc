"""One API server under several names: which name counts, and that the others are closed."""

import msgspec
import pytest

from berthmaster.lib.engine.fleet.clusters import Clusters, Twins
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.messages.fleet import ClusterProfile
from tests.support.builders import profile

UID = "5c1e"


def known(name: str, since_s: float = 0.0, uid: str = UID) -> ClusterProfile:
    return msgspec.structs.replace(profile(name), uid=uid, uid_since_s=since_s)


@pytest.mark.parametrize(
    ("told", "firsts"),
    [
        ([known("a", 1.0), known("b", 2.0)], {"a": "", "b": "a"}),
        ([known("b", 1.0), known("a", 2.0)], {"a": "b", "b": ""}),
        ([known("b", 1.0), known("a", 1.0)], {"a": "", "b": "a"}),  # equal times: by name
        ([known("a", 3.0), known("b", 2.0), known("c", 1.0)], {"a": "c", "b": "c", "c": ""}),
        ([known("a", uid=""), known("b", uid="")], {"a": "", "b": ""}),  # unknown is not equal
        ([known("a"), known("b", uid="other")], {"a": "", "b": ""}),
        ([known("a", 1.0), known("b", 2.0), known("b", 2.0, "other")], {"a": "", "b": ""}),
    ],
)
def test_first_of_names_with_one_uid_counts(
    told: list[ClusterProfile], firsts: dict[str, str]
) -> None:
    found = []
    for order in (
        (told, told[::-1]) if len({each.cluster for each in told}) == len(told) else (told,)
    ):
        twins = Twins.of(order)
        found.append({name: twins.first(name) for name in firsts})
    assert found == [firsts] * len(found)


def test_lost_name_counts_no_more_and_counts_again() -> None:
    twins = Twins.of([known("a", 1.0), known("b", 2.0)])
    assert twins.set_lost("a", True) == {"a", "b"}
    assert (twins.first("a"), twins.first("b")) == ("b", "")
    twins.set_lost("b", True)  # both: the first of all
    assert (twins.first("a"), twins.first("b")) == ("", "a")
    twins.set_lost("a", False)
    assert twins.first("b") == "a"
    assert twins.set_lost("stranger", True) == set()


def test_dropped_cluster_leaves_its_place_to_the_next() -> None:
    twins = Twins.of([known("a", 1.0), known("b", 2.0)])
    assert twins.drop("a") == {"a", "b"}
    assert twins.first("b") == ""
    assert twins.drop("a") == set()
    twins.put(known("a", 3.0))
    assert twins.first("a") == "b"


def test_twin_is_closed_with_the_other_name_in_view_and_table() -> None:
    clusters, table = Clusters(), ClusterTable()
    for name in ("a", "b", "c"):
        clusters.get(name).alive_at_s = 10.0
    names = ["a", "b", "c"]
    at = {"stale_after_s": 60.0, "avoid_s": 60.0}

    def closed() -> dict[str, str]:
        table.follow(clusters, names, 1)
        seen = table.at(11.0, **at)
        by_view = {name: clusters.view(name, 11.0, **at).closed for name in names}
        by_table = {name: seen.closed.get(number, "") for number, name in enumerate(names)}
        assert by_view == by_table
        return {name: why for name, why in by_view.items() if why}

    assert not clusters.take_profile(known("b", 5.0))
    assert closed() == {}
    assert clusters.take_profile(known("c", 6.0))
    assert closed() == {"c": "the same cluster as another: b"}
    assert clusters.take_profile(known("a", 4.0))
    told = "the same cluster as another: a"
    assert closed() == {"b": told, "c": told}
    clusters.set_lost("a", True)
    assert closed() == {"a": "declared lost", "c": "the same cluster as another: b"}
