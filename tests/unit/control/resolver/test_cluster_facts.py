"""What profiles say of their API servers: one server under two names, kinds that it cannot list."""

from msgspec.structs import replace

from berthmaster.lib.messages.api import DryRunReply, WhyReply
from berthmaster.lib.messages.control import ClusterLost
from berthmaster.lib.messages.fleet import ClusterProfile, UnlistedKind
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World, placements

SLICES = UnlistedKind(
    kind="resourceslices.resource.k8s.io", why="webhook 10.1.2.3 refused", since_s=12 * 3600 + 180.0
)
OLD = "east cannot list resourceslices.resource.k8s.io since 12:03 UTC: what is known may be old"


def of(name: str, since_s: float) -> ClusterProfile:
    return replace(profile(name), uid="5c1e", uid_since_s=since_s)


def two_names() -> World:
    """One cluster of eight GPUs, which `east` and `copy` both report."""
    world = World()
    for name, since_s in (("east", 1.0), ("copy", 2.0)):
        world.fact(of(name, since_s), alive(name), node(name))
    return world


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def test_gpus_of_a_server_with_two_names_are_given_once() -> None:
    world = two_names()
    world.submit(job("a", gpus=8))
    world.submit(job("b", gpus=8))
    [plan] = world.settle()
    assert placements(plan) == {"a": "east"}
    waits = why(world, "b")
    assert waits.filtered == {
        "copy": "the same cluster as another: east",
        "east": "busy: no room now",
    }
    assert "1 the same cluster as another" in waits.summary


def test_other_name_takes_over_when_the_first_is_declared_lost() -> None:
    world = two_names()
    world.submit(job("a", gpus=8, clusters=("copy",)))
    assert world.settle() == []
    world.control(ClusterLost(cluster="east", lost=True, reason="renamed"))
    [plan] = world.settle()
    assert placements(plan) == {"a": "copy"}


def test_twin_whose_uid_becomes_another_takes_what_waits() -> None:
    world = two_names()
    world.submit(job("a", gpus=8, clusters=("copy",)))
    assert world.settle() == []
    world.fact(replace(of("copy", 3.0), uid="77aa", stamp=replace(profile().stamp, counter=2)))
    [plan] = world.settle()
    assert placements(plan) == {"a": "copy"}


def test_why_says_which_kinds_a_cluster_cannot_list() -> None:
    world = World()
    for name in ("east", "west"):
        told = replace(profile(name), unlisted=(SLICES,) if name == "east" else ())
        world.fact(told, alive(name), node(name))
    world.submit(job("there", gpus=8, clusters=("east",)))
    world.settle()
    world.submit(job("waits", gpus=8, clusters=("east",)))
    world.submit(job("elsewhere", gpus=16, clusters=("west",)))
    world.settle()
    assert why(world, "there").summary.endswith(f"; {OLD}")
    assert OLD in why(world, "waits").hints
    assert OLD not in why(world, "elsewhere").hints
    assert "10.1.2.3" not in str(why(world, "there"))  # its server's words are for operators


def test_dry_run_says_that_a_cluster_is_known_by_old_facts() -> None:
    world = World()
    world.fact(replace(profile("east"), unlisted=(SLICES,)), alive("east"), node("east"))
    reply = world.dry_run(TENANT, job("a"), world.now_s)
    assert isinstance(reply, DryRunReply)
    assert reply.summary == f"would run on east, n1; {OLD}"
