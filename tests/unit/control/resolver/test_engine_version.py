"""A decision is repeated by the engine that made it: another result needs another version.

If this fails you have changed what the engine decides or how it scores. Raise ENGINE_VERSION, so
that `berth replay-decisions` says of decisions of the version before that it cannot repeat them
instead of that they came out otherwise, and put the new digest beside the new version.
"""

import hashlib

import msgspec

from berthmaster.control.resolver.policy import ENGINE_VERSION
from berthmaster.lib.messages.fleet import ClusterScore, Stamp
from berthmaster.lib.messages.placement import Choice
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World

VERSION, DIGEST = "50", "e8b32aeb5ce0db8f"


def test_what_an_engine_decides_is_bound_to_its_version() -> None:
    world = World()
    for at, (model, gpus, nodes) in enumerate((("T4", 2, 5), ("A100", 8, 3), ("V100", 4, 4)), 1):
        name = f"c{at}"
        world.fact(profile(name), alive(name))
        for number in range(nodes):
            world.fact(node(name, f"n{number}", gpus=gpus, model=model))
        world.fact(
            ClusterScore(
                cluster=name,
                stamp=Stamp(epoch=1, counter=1),
                freshness="fresh",
                input_age_s=0.5,
                idle_gpu_percent=100 / (at + 2),
            )
        )
        world.now_s += 0.7
    placements: list[Choice] = []
    for at in range(24):
        world.submit(
            job(
                f"j{at}",
                priority=at % 3,
                gpus=(1, 1, 2, 4, 8)[at % 5],
                gpu_milli=(1000, 250, 1000)[at % 3] if at % 5 < 2 else 1000,
                count=2 if at % 7 == 0 else 1,
            )
        )
        world.now_s += 0.13
        while (plan := world.decide()) is not None:
            placements += plan.decision.placements
    assert len(placements) > 15
    digest = hashlib.sha256(msgspec.json.encode(placements, order="sorted")).hexdigest()[:16]
    # As the engine decides on nothing but these, clocks and machines do not matter.
    assert (ENGINE_VERSION, digest) == (VERSION, DIGEST)
