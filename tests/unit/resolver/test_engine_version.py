"""A decision is repeated by the engine that made it: another result needs another version.

If this fails you have changed what the engine decides or how it scores. Raise ENGINE_VERSION, so
that `berth replay-decisions` says of older decisions that it cannot repeat them instead of that
they came out otherwise, and put the new digest beside the new version.
"""

import hashlib

import msgspec

from berthmaster.messages.fleet import ClusterScore, Stamp
from berthmaster.messages.placement import Choice
from berthmaster.resolver.settings import ENGINE_VERSION
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World

# 2: parts of GPUs cost as much as the piece that they are; quota and kinds of job objects count.
# 3: queues have guarantees and shares; room is kept for the first jobs that do not fit.
# 4: GPU models are compared word by word, whatever their spelling.
# 5: pods go where they cost least by what was learned of the mix, not where they fit best.
# 6: room that nodes cannot give any more is not kept for anybody.
# 8: clusters are ranked by profiles; who stands in a cluster's own queue counts, and where data is.
# 8: scores lost a constant that was the same everywhere.
# 11: the quota of clusters' own queues is what Kueue makes of it.
# 12: nodes that only some pods accept, and whole nodes, are dearer the scarcer they are.
# 13: room is made for guarantees, deserved shares and priorities: others are ended for it.
# 14: no set of jobs that are ended goes beyond a budget, and room is made beside placements.
# 15: small pods go to small nodes, and the next node that becomes whole is dear where none is.
# 16: jobs that may be are divided over clusters.
# 17: a part of a gang that makes room costs what all of its parts lose and hold.
# 18: of a job that was stopped what is left counts, and equals may stop each other.
# 19: blocks of GPUs that are free on one node are dearer the fewer are left, whole nodes or not.
# 21: what is nearly a block of GPUs counts as a part of one.
# 22: what is left of equals that say nothing is learned by size and age; they wait in that order.
# 23: a job that was brought back and does not say how long it takes goes by a guess.
# 24: a divided job is one of those that its queue may run, however many parts it has.
# 25: claimed devices, parts of GPUs too, are asked of a worker's quota as its Kueue counts them.
# 26: blocks of GPUs are dearer the more of the demand takes so many on one node.
# 27: who is stopped stands in line by what is left of it at once, not once the outlook has changed.
# 28: what a worker's Kueue lets change its number of pods does; what came to nothing rests longer.
# 29: several pod sets go where Volcano runs the jobs, too.
# 30: nobody is told twice to go; parts of a gang that runs start, though the log lost their commit.
# 31: a decision says how many events were stored with it.
# 32: where KAI divides GPUs a part is on the fullest with room, and memory costs what KAI counts.
# 33: nobody moves to GPUs that its queue may not have, or keeps room where it may not run.
# 34: no part of a GPU of HAMi's is smaller than the pods leave that may have it at once.
# 35: what shrinks gives back the quota of its pods, too, by the resource that the queue grants.
# 36: a divided job that comes again takes no id of parts that were brought back.
# 37: what shrinks gives back quota of a flavor whose nodes it is on.
# 38: who failed rests until its time by the clock that the decision has, if that was put back.
# 39: who did not fit is looked at again once the clock was put back; who overtook it is looked at.
# 40: nobody makes or leaves room for a job of which the log refused the last commit.
# 41: a cluster that leaves placements unclaimed is tried with a few until it claims one.
# 42: a decision tells which clusters leave placements unclaimed.
# 43: of a frozen workload nothing counts, not even as void, before its story is told again.
# 44: behind a gap nobody but its cluster ends the attempt that stands before it.
# 45: parts of a divided job and jobs that move go before the others of their queue.
# 46: behind a gap nobody takes the attempt that stands before it.
# 47: no pod is placed on a GPU that telemetry calls lost, whatever its node reports; each GPU has
#     its own resource, a pod's are of one, and a part is on the GPUs that offer it; limits and
#     preemption count what nodes charge for parts of GPUs; a
#     reservation takes the highest use at any time, not the sum of what runs and what follows.
# 9: by due times, wide jobs are due earlier, and durations that nobody stated count half.
DIGESTS = (
    dict.fromkeys(("1", "2", "3", "4"), "042e8bdfc866cebd")
    | dict.fromkeys(("5", "6", "7"), "7e6cd4d7ed1ca711")
    | dict.fromkeys(("8", "9", "10", "11"), "e3b6c52e4191e19f")
    | dict.fromkeys(("12", "13", "14"), "c509912236ce2ce8")
    | dict.fromkeys(("15", "16", "17", "18"), "0331f47bb8c6a22d")
    | dict.fromkeys(("19", "20"), "8f314013323c3927")
    | dict.fromkeys(map(str, range(21, 48)), "7bfd2c507962cf85")
)


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
    assert DIGESTS.get(ENGINE_VERSION) == digest
