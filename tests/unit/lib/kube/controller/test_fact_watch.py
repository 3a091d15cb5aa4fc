"""An odd object that a fact is made of is set aside, and the rest is told as it changes."""

import asyncio
import io
from typing import Any

from berthmaster.lib.kube.controller.fact_watch import FactWatch
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.mirror import Added, Change, Unreadable
from berthmaster.lib.kube.service_client import ClusterSettings
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import load
from tests.support.patience import until
from tests.unit.lib.kube.stage import WIDGETS, Stage, Widget


def test_an_object_that_makes_the_core_raise_ends_nothing() -> None:
    told: list[str] = []

    def take(plural: str, change: Change[Any]) -> None:
        assert plural == "widgets"
        if isinstance(change, Unreadable):
            told.append(f"unreadable {change.object.name}")
        elif isinstance(change, Added):
            if change.object.metadata.name == "odd":
                raise ArithmeticError
            told.append(change.object.metadata.name)

    async def story() -> None:
        ctx = Context(
            "inventory",
            load(ClusterSettings, "inventory", []),
            log=Log("inventory", stream=io.BytesIO()),
            metrics=Metrics("inventory"),
            health=Health(),
        )
        async with Stage() as stage, await stage.client() as client:
            await stage.put("odd")
            await stage.put("unreadable", spec={"size": "huge"})
            await stage.put("good")
            watch = FactWatch(ctx, client, (Watched(WIDGETS, Widget),), take)
            watch.start()
            await until(lambda: watch.ready)
            assert told == ["good", "unreadable unreadable"]
            assert watch.live() == ""
            assert [one.metadata.name for one in watch.aside.take_unreported()] == ["odd"]
            await stage.put("later")
            await until(lambda: told[-1] == "later")
            ctx.stopping.set()
            await asyncio.gather(*ctx.tasks)

    asyncio.run(story())
