"""A queue gets back what it is guaranteed: jobs are ended and do again what was not saved; whom two
other rules would have ended is asked of the same moment."""

import msgspec

from berthmaster.lab.simulate import ours
from berthmaster.lab.simulate.model import Job, JobOutcome
from berthmaster.lab.simulate.ours import Reclaim
from berthmaster.lab.simulate.traces import even_fleet
from berthmaster.lib.messages.control import QueueSetting
from scripts.benchmarks.lost_work import ORDERS, compare, victims_by
from tests.unit.lab.simulate.lists import job

KEEPS_MILLI = 2000
QUEUES = [
    QueueSetting(queue="left", guarantee_gpu_milli=KEEPS_MILLI, preempts="never"),
    QueueSetting(queue="right", guarantee_gpu_milli=KEEPS_MILLI, preempts="never"),
]


def of(queue: str, every_s: float, one: Job, priority: int = 0) -> Job:
    """In a queue, with a checkpoint every so many seconds."""
    request = msgspec.structs.replace(
        one.request, queue=queue, checkpoint_every_s=every_s, priority=priority
    )
    return one._replace(request=request)


# Four GPUs, all of them right's. The one that began first has just saved all of its work; the one
# that began last has saved nothing; the one of least priority has saved nothing for longer.
JOBS = [
    of("right", 1000.0, job("saved", 0.0, 5000.0, overhead_s=10.0), 1),
    of("right", 9000.0, job("unimportant", 0.0, 5000.0, overhead_s=10.0), 0),
    of("right", 9000.0, job("middle", 100.0, 5000.0, overhead_s=10.0), 1),
    of("right", 9000.0, job("newest", 200.0, 5000.0, overhead_s=10.0), 1),
    of("left", 9000.0, job("owner", 1020.0, 100.0)),
]


def test_the_cheapest_is_ended_and_goes_on_from_its_checkpoint() -> None:
    demands: list[Reclaim] = []
    found: list[tuple[tuple[str, ...], dict[str, list[str]], float, dict[str, float | None]]] = []

    def seen(reclaim: Reclaim) -> None:
        demands.append(reclaim)
        whom = {}
        for name, order in ORDERS.items():
            victims = victims_by(order, reclaim, KEEPS_MILLI)
            assert victims is not None
            whom[name] = [attempt.request.id for attempt in victims]
        found.append((reclaim.victims, whom, *compare(reclaim, KEEPS_MILLI)))

    played = ours.run(even_fleet(1, 4), JOBS, queues=QUEUES, on_reclaim=seen)

    # 20 s since its checkpoint and 10 s to start, on one GPU; 820 and 1,020 s of the others.
    assert found == [
        (
            ("saved",),
            {"newest": ["newest"], "lowest_priority": ["unimportant"]},
            30.0,
            {"newest": 830.0, "lowest_priority": 1030.0},
        )
    ]
    assert demands[0].asked.id == "owner"
    assert played.lost_gpu_s == 30.0

    # The owner begins at once. The one that was ended goes on when it is over, and does 20 s again.
    named = dict(zip((one.request.id for one in played.jobs), played.outcomes, strict=True))
    assert named == {
        "saved": JobOutcome(0.0, 1120.0 + 10.0 + 4000.0),
        "unimportant": JobOutcome(0.0, 5000.0),
        "middle": JobOutcome(100.0, 5100.0),
        "newest": JobOutcome(200.0, 5200.0),
        "owner": JobOutcome(1020.0, 1120.0),
    }


def test_nobody_is_taken_below_a_guarantee_by_any_of_the_rules() -> None:
    two = job("two", 10.0, 100.0, gpus=2)
    # Right has two GPUs, which it is guaranteed; the other two are left's own.
    jobs = [of("right", 50.0, job("theirs", 0.0, 300.0, gpus=2)), of("left", 50.0, two)]
    waits = of("left", 50.0, job("waits", 20.0, 50.0, gpus=2))
    demands: list[Reclaim] = []
    played = ours.run(even_fleet(1, 4), [*jobs, waits], queues=QUEUES, on_reclaim=demands.append)
    assert (demands, played.lost_gpu_s) == ([], 0.0)
    assert [outcome.started_s for outcome in played.outcomes] == [0.0, 10.0, 110.0]
