"""How many events are stored with a decision, and whose they are."""

import msgspec

from berthmaster.lib.lifecycle.commits import DecisionOutline, NewestBatch, batch_size, jobs_of
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.placement import (
    Choice,
    Commit,
    Decision,
    DividedPart,
    Division,
    EvictionOrder,
    MoveOrder,
    PartOrder,
    Rebalance,
    RebalanceMove,
    ResizeOrder,
    Retraction,
    Saw,
)

AT = {"tenant": "t", "attempt": 1, "cluster": "c1"}
EMPTY = Decision(
    cell="all",
    number=7,
    after=3,
    decider="r",
    engine="1",
    now_s=0.0,
    settings={},
    saw=Saw(workloads=3, fleet=1, control=0),
)
MOVE = RebalanceMove(id="moved", to="c2", lost_gpu_s=1.0, **AT)  # type: ignore[arg-type]
FULL = msgspec.structs.replace(
    EMPTY,
    placements=(Choice(id="placed", pods=(), ranking=(), **AT),),  # type: ignore[arg-type]
    withdrawals=(Retraction(id="withdrawn", reason="", **AT),),  # type: ignore[arg-type]
    evictions=(
        EvictionOrder(
            id="ended",
            lost_gpu_s=1.0,
            for_tenant="t",
            for_id="x",
            right="priority",
            **AT,  # type: ignore[arg-type]
        ),
    ),
    resizes=(ResizeOrder(id="shrunk", pods_before=2, pods=1, **AT),),  # type: ignore[arg-type]
    moves=(MoveOrder(id="drained", lost_gpu_s=1.0, why="drain", **AT),),  # type: ignore[arg-type]
    rebalances=(
        Rebalance(
            tenant="t",
            id="x",
            cluster="c1",
            moves=(MOVE,),
            gpus=1.0,
            waited_s=1.0,
            saves_s=1.0,
            gain_gpu_s=1.0,
            cost_gpu_s=1.0,
        ),
    ),
    divisions=(
        Division(
            tenant="t",
            id="divided",
            attempt=1,
            parts=(
                DividedPart(id="d0", cluster="c1", pods=1, room=1),
                DividedPart(id="d1", cluster="c2", pods=1, room=1),
            ),
        ),
    ),
    commits=(Commit(tenant="t", id="gang", attempt=1, parts=("g0", "g1")),),
    partings=(PartOrder(id="parted", lost_gpu_s=1.0, reason="", **AT),),  # type: ignore[arg-type]
)


def test_each_kind_of_order_has_events_and_the_part_that_is_read_says_the_same() -> None:
    jobs = {name for _, name in jobs_of(FULL)}
    assert jobs == {
        *("placed", "withdrawn", "ended", "shrunk", "drained", "moved", "parted"),
        *("divided", "d0", "d1", "g0", "g1"),
    }
    assert batch_size(FULL) == 12
    assert batch_size(EMPTY) == 0
    # The gang itself is told that it starts, or has started before: the decision says how many.
    told = msgspec.structs.replace(FULL, events=13)
    for decision in (FULL, told):
        orders = msgspec.json.decode(encode(decision), type=DecisionOutline)
        assert jobs_of(orders) == jobs_of(decision)
        assert batch_size(orders) == batch_size(decision)
    assert batch_size(told) == 13


def test_the_newest_decision_counts() -> None:
    newest = NewestBatch()
    newest.began(FULL, 40)
    assert newest.end == 52
    newest.began(EMPTY, 20)  # told again
    assert newest.end == 52
