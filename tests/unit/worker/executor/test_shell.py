"""What the shell has its cluster, its logs and the progress of its jobs do for an order."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.worker.executor.core.cluster_protocol import Attempt, DeletePods, StopPods
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.shell import Shell

TRAIN = Attempt("acme", "train", 1)


class Recorder:
    """Runtime, logs and progress in one: keeps what is asked of it, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.then: list[Callable[[], None]] = []

    def perform(self, order: Any) -> None:
        self.calls.append(order)

    def flush(self) -> None:
        self.calls.append("flush")

    def follow(self, attempt: Attempt) -> None:
        self.calls.append("follow")

    def keep_ends(self, attempt: Attempt, then: Callable[[], None] = lambda: None) -> None:
        self.calls.append("keep ends")
        self.then.append(then)


def order(one: StopPods | DeletePods, *, beside: bool) -> Recorder:
    """The calls for one order, with logs and progress beside the runtime or without."""

    async def performed() -> Recorder:
        there = Recorder()
        extra: Any = {"logs": there, "progress": there} if beside else {}
        shell = Shell(cast("DoorClient", None), Executor("berlin"), cast("Any", there), **extra)
        shell._perform(one)
        return there

    return asyncio.run(performed())


def test_delete_waits_for_ends_of_logs() -> None:
    delete = DeletePods(TRAIN, "over")
    there = order(delete, beside=True)
    assert there.calls == ["keep ends"]
    there.then[0]()
    assert there.calls == ["keep ends", delete, "flush"]
    assert order(delete, beside=False).calls == [delete]


def test_stop_is_followed_and_waits_for_nothing() -> None:
    stop = StopPods(TRAIN, "cancelled")
    assert order(stop, beside=True).calls == ["follow", "keep ends", stop]
    assert order(stop, beside=False).calls == [stop]
