"""A service's mirrors against a server: what is known, what is lacking, and what people see."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.watch import Watch, Watched
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings, load
from tests.support.patience import until
from tests.unit.lib.kube.stage import WIDGETS, Stage, Widget

NEEDED = Watched(WIDGETS, Widget)
OPTIONAL = NEEDED._replace(optional=True)
BLUE = NEEDED._replace(namespace="blue", part="blue widgets")
GONE = "widgets of toys.example/v1 are not served here"


class Service:
    """One that only mirrors."""

    def __init__(self) -> None:
        self._lines = io.BytesIO()
        self.told: list[tuple[str, str, bool]] = []
        self.listed: list[str] = []
        self.aside = SetAside()
        self.odd: set[str] = set()  # names of objects that make it raise
        self.context = Context(
            "toys",
            load(CommonSettings, "toys"),
            log=Log("toys", stream=self._lines),
            metrics=Metrics("toys"),
            health=Health(),
        )

    def hear(self, one: Watched, thing: Object, gone: bool) -> None:
        if thing.metadata.name in self.odd:
            raise KeyError("its secret")
        self.told.append((one.name, thing.metadata.name, gone))

    @property
    def parts(self) -> dict[str, dict[str, object]]:
        parts: Any = self.context.health.readiness()[1]["parts"]
        return dict(parts)

    def figure(self, what: str, of: str) -> float | None:
        return self.context.metrics.registry.get_sample_value(
            f"berth_toys_{what}", {"resource": of}
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines.getvalue().splitlines()]


@asynccontextmanager
async def mirroring(
    stage: Stage, *watched: Watched, sure_s: float = 0.05
) -> AsyncIterator[tuple[Watch, Service]]:
    service = Service()
    async with await stage.client() as client:
        mirrors = Watch(
            service.context,
            client,
            watched,
            service.aside,
            on_object=service.hear,
            on_listed=lambda one: service.listed.append(one.name),
            absent_s=0.02,
            sure_s=sure_s,
        )
        mirrors.start()
        try:
            yield mirrors, service
        finally:
            service.context.stopping.set()
            await asyncio.gather(*service.context.tasks)


def test_all_is_known_when_everything_is_listed_and_each_part_is_told_by_its_name() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            await stage.put("b", namespace="blue")
            async with mirroring(stage, NEEDED, BLUE) as (mirrors, service):
                assert not mirrors.complete
                assert service.parts["mirror of widgets"] == {"ok": False, "why": "not listed yet"}
                await until(lambda: mirrors.complete)
                mirrors.show()
                assert set(service.parts) == {"mirror of widgets", "mirror of blue widgets"}
                assert all(part == {"ok": True, "why": ""} for part in service.parts.values())
                assert service.figure("objects", "widgets") == 2
                assert service.figure("objects", "blue widgets") == 1
                assert sorted(service.told) == [
                    ("blue widgets", "b", False),
                    ("widgets", "a", False),
                    ("widgets", "b", False),
                ]
                assert mirrors.has("blue widgets")
                assert not mirrors.has("gadgets")
                assert (mirrors.trouble, mirrors.lacking) == ("", [])

    asyncio.run(story())


def test_a_kind_that_may_be_lacking_is_waited_for_until_that_is_sure_and_noted_then() -> None:
    async def story() -> None:
        async with Stage() as stage:
            stage.served = False
            async with mirroring(stage, OPTIONAL) as (mirrors, service):
                await until(lambda: mirrors.trouble)
                assert (mirrors.complete, mirrors.lacking) == (False, [])
                mirrors.show()
                assert service.parts["mirror of widgets"] == {"ok": False, "why": GONE}

                await until(lambda: mirrors.lacking)
                mirrors.show()
                assert (mirrors.complete, mirrors.trouble) == (True, "")
                assert service.parts["mirror of widgets"] == {"ok": True, "why": GONE}

                # What comes later is needed as if it had always been there.
                stage.served = True
                await until(lambda: mirrors.has("widgets"))
                mirrors.show()
                assert (mirrors.complete, mirrors.lacking) == (True, [])
                assert service.parts["mirror of widgets"] == {"ok": True, "why": ""}

    asyncio.run(story())


def test_neither_a_needed_kind_nor_one_that_we_may_not_see_is_done_without() -> None:
    async def story() -> None:
        async with Stage() as stage:
            stage.served = False
            async with mirroring(stage, NEEDED, sure_s=0.001) as (mirrors, service):
                await until(lambda: mirrors.trouble)
                assert (mirrors.complete, mirrors.lacking, mirrors.trouble) == (False, [], GONE)
                mirrors.show()
                assert service.parts["mirror of widgets"] == {"ok": False, "why": GONE}
            stage.served, stage.allowed = True, False
            async with mirroring(stage, OPTIONAL) as (mirrors, _):
                await until(lambda: mirrors.trouble)
                await asyncio.sleep(0.1)
                assert (mirrors.complete, mirrors.lacking) == (False, [])
                assert "not allowed" in mirrors.trouble

    asyncio.run(story())


def test_an_object_that_cannot_be_read_is_logged_once_counted_and_told() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("odd", spec={"size": "huge"})
            await stage.put("good")
            async with mirroring(stage, NEEDED) as (mirrors, service):
                await until(lambda: mirrors.complete)
                mirrors.show()
                assert service.figure("unreadable_objects", "widgets") == 1
                assert service.figure("objects", "widgets") == 1
                assert service.told == [("widgets", "good", False)]
                assert service.listed == ["widgets"]
                (oddity,) = service.aside.take_unreported()
                assert (oddity.phase, oddity.metadata.name) == (Phase.READING, "odd")
                assert oddity.why.startswith("Expected `int`, got `str`")
                (line,) = service.lines()
                assert line["event"] == "malformed object"
                assert (line["resource"], line["name"]) == ("widgets", "toys/odd")
                assert line["why"].startswith("Expected `int`, got `str`")

                # Put right it is like any other; deleted it is nobody's trouble any more.
                await stage.put("odd", spec={"size": 3})
                await until(lambda: len(service.told) == 2)
                assert len(service.aside) == 0
                await stage.put("odd", spec={"size": "huge"})
                await until(lambda: len(service.aside) == 1)
                await stage.remove("odd")
                await until(lambda: service.told[-1] == ("widgets", "odd", True))
                assert len(service.aside) == 0

    asyncio.run(story())


def test_an_object_that_is_not_understood_is_set_aside_until_it_changes() -> None:
    async def story() -> None:
        async with Stage() as stage, mirroring(stage, NEEDED) as (mirrors, service):
            service.odd.add("odd")
            await stage.put("odd")
            await stage.put("good")
            await until(lambda: service.told == [("widgets", "good", False)])
            (oddity,) = service.aside.take_unreported()
            assert (oddity.phase, oddity.metadata.name) == (Phase.HEARING, "odd")
            assert oddity.why.startswith("KeyError in test_watch.py, line ")
            assert "its secret" not in oddity.event.note
            assert mirrors.complete

            service.odd.clear()
            await stage.put("odd", spec={"size": 3})
            await until(lambda: ("widgets", "odd", False) in service.told)
            assert len(service.aside) == 0

    asyncio.run(story())
