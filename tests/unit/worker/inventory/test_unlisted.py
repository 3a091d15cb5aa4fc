"""Kinds that an API server does not let us list, although it answers: told, and not guessed."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from berthmaster.lib.kube.controller import fact_watch
from berthmaster.lib.kube.controller.fact_watch import FactWatch
from berthmaster.lib.kube.controller.problems import Unlisted
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.mirror import Added, Listed
from berthmaster.lib.kube.resources import KUEUE_WORKLOADS, Resource
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterProfile,
    FleetFact,
    NodeReport,
    QueueReport,
    UnlistedKind,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import load
from berthmaster.worker.inventory.core.inventory import MAX_WHY_CHARS, NEW_WORDS_S, Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.settings import InventorySettings
from tests.support.patience import until
from tests.unit.lib.kube.stage import WIDGETS, Refusal, Stage, Widget
from tests.unit.worker.inventory.objects import NOW_S, STAMP, cluster_queue, discovered, node

PROFILE = subjects.profile("east")
N1 = subjects.node("east", "n1")
GPUS = subjects.queue_report("east", "gpus")
GPU = "nvidia.com/gpu"
HEAD: dict[str, Any] = {"cluster": "east", "stamp": STAMP, "observed_at_s": 1.0}
WHY = "conversion webhook for kueue.x-k8s.io/v1beta2 failed (500)"


def failing(kind: WatchedKind, name: str = "", why: str = WHY, for_s: float = 5.0) -> Unlisted:
    return Unlisted(kind.value, name or kind.value, why, for_s)


def told(inventory: Inventory, subject: str) -> FleetFact | None:
    fact = inventory.fact(subject, STAMP, NOW_S)
    return fact[0] if fact is not None else None


def profile_of(inventory: Inventory) -> ClusterProfile:
    found = told(inventory, PROFILE)
    assert isinstance(found, ClusterProfile)
    return found


def listed() -> Inventory:
    """A cluster with one node of two GPUs and one queue, all of it listed."""
    inventory = Inventory("east")
    inventory.take(WatchedKind.NODES, Added(node("n1", {GPU: "2"}, labels=discovered())))
    inventory.take(WatchedKind.CLUSTER_QUEUES, Added(cluster_queue("gpus")))
    for kind in WatchedKind:
        inventory.take(kind, Listed("1"))
    inventory.changes()
    return inventory


def test_failing_kind_is_in_the_profile_since_its_first_failure_until_it_is_listed() -> None:
    inventory = listed()
    inventory.unlisted([failing(WatchedKind.SLICES, "resourceslices.resource.k8s.io")], NOW_S)
    expected = UnlistedKind(kind="resourceslices.resource.k8s.io", why=WHY, since_s=NOW_S - 5.0)
    assert dict(inventory.changes()) == {PROFILE: True}
    assert profile_of(inventory).unlisted == (expected,)
    inventory.unlisted([failing(WatchedKind.SLICES, expected.kind, for_s=6.0)], NOW_S + 1.0)
    assert dict(inventory.changes()) == {}
    assert profile_of(inventory).unlisted == (expected,)
    inventory.unlisted([], NOW_S + 2.0)
    assert dict(inventory.changes()) == {PROFILE: True}
    assert profile_of(inventory).unlisted == ()


def test_words_that_differ_each_time_are_reported_once_a_minute_and_bounded() -> None:
    inventory = listed()
    for second in range(int(NEW_WORDS_S)):
        why = f"dial tcp 10.0.0.1:{second}" + "x" * 10_000
        inventory.unlisted([failing(WatchedKind.PODS, why=why)], NOW_S + second)
    assert profile_of(inventory).unlisted[0].why.startswith("dial tcp 10.0.0.1:0")
    assert len(profile_of(inventory).unlisted[0].why) == MAX_WHY_CHARS
    inventory.changes()
    inventory.unlisted([failing(WatchedKind.PODS, why="other")], NOW_S + NEW_WORDS_S)
    assert dict(inventory.changes()) == {PROFILE: True}
    [one] = profile_of(inventory).unlisted
    assert (one.why, one.since_s) == ("other", NOW_S - 5.0)


@pytest.mark.parametrize(
    ("kind", "held_back"),
    [
        (WatchedKind.PODS, N1),
        (WatchedKind.SLICES, N1),
        (WatchedKind.CLAIMS, N1),
        (WatchedKind.LOCAL_QUEUES, GPUS),
        (WatchedKind.COHORTS, GPUS),
    ],
)
def test_fact_of_unlisted_kind_is_held_back(kind: WatchedKind, held_back: str) -> None:
    """Half of it would be worse than what an earlier life reported: a node without its pods."""
    inventory = Inventory("east")
    inventory.earlier(
        [
            NodeReport(**HEAD, node="n1", allocatable=Amounts(gpu_milli=2000)),
            QueueReport(**HEAD, queue="gpus"),
        ]
    )
    inventory.take(WatchedKind.NODES, Added(node("n1", {GPU: "2"}, labels=discovered())))
    inventory.take(WatchedKind.CLUSTER_QUEUES, Added(cluster_queue("gpus")))
    for each in WatchedKind:
        if each is not kind:
            inventory.take(each, Listed("1"))
    inventory.unlisted([failing(kind)], NOW_S)
    inventory.changes()
    assert told(inventory, held_back) is None
    others = {N1, GPUS} - {held_back}
    assert all(told(inventory, other) is not None for other in others)
    inventory.take(kind, Listed("2"))
    assert inventory.changes().get(held_back)
    assert told(inventory, held_back) is not None


def test_profile_of_nodes_that_were_never_listed_has_the_earlier_numbers() -> None:
    inventory = Inventory("east")
    inventory.earlier([ClusterProfile(**HEAD, nodes=3, gpus={"T4": 12})])
    for kind in WatchedKind:
        if kind is not WatchedKind.NODES:
            inventory.take(kind, Listed("1"))
    inventory.unlisted([failing(WatchedKind.NODES)], NOW_S)
    told_ = profile_of(inventory)
    assert (told_.nodes, told_.gpus) == (3, {"T4": 12})
    inventory.take(WatchedKind.NODES, Listed("1"))
    assert profile_of(inventory).nodes == 0


def test_profile_has_the_uid_of_its_api_server() -> None:
    inventory = listed()
    inventory.set_uid("5c1e")
    assert dict(inventory.changes()) == {PROFILE: True}
    assert profile_of(inventory).uid == "5c1e"


# Of an API server


GADGETS = Resource("toys.example", "v1", "gadgets", "Gadget")


class HalfDeaf(Stage):
    """Answers for gadgets as the test says, and for widgets as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.gadgets: Callable[[], None] = lambda: None

    async def _answer(
        self, request: web.Request, query: dict[str, str], body: Any
    ) -> web.StreamResponse:
        if "gadgets" in request.path:
            self.gadgets()
        return await super()._answer(request, query, body)


def refused(code: int, reason: str) -> Callable[[], None]:
    def answer() -> None:
        raise Refusal(code, reason, "the conversion webhook is away")

    return answer


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_watch, "UNLISTED_S", 0.2)


async def watched(stage: Stage, client: Any, *, optional: bool) -> FactWatch:
    ctx = Context(
        "inventory",
        load(InventorySettings, "inventory", ["--cluster", "east"]),
        log=Log("inventory", stream=io.BytesIO()),
        metrics=Metrics("inventory"),
        health=Health(),
    )
    made = FactWatch(
        ctx,
        client,
        (Watched(WIDGETS, Widget), Watched(GADGETS, Widget, optional=optional)),
        lambda kind, change: None,
    )
    made.start()
    return made


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize(("code", "reason"), [(500, "InternalError"), (503, "Unavailable")])
def test_kind_with_error_is_unlisted(code: int, reason: str, optional: bool) -> None:
    async def story() -> None:
        async with HalfDeaf() as stage, await stage.client() as client:
            stage.gadgets = refused(code, reason)
            watch = await watched(stage, client, optional=optional)
            await until(watch.unlisted)
            [one] = watch.unlisted()
            assert (one.kind, one.name) == ("gadgets", "gadgets.toys.example")
            assert f"the conversion webhook is away ({code} {reason}" in one.why
            assert watch.ready
            assert bool(watch.live()) is not optional  # no sign of life without what is needed
            watch.show()
            parts: Any = watch._ctx.health.readiness()[1]["parts"]
            found = parts["mirror of gadgets"]
            assert (found["ok"], one.why in str(found)) == (optional, True)
            stage.gadgets = lambda: None
            await until(lambda: not watch.unlisted(), 30)
            assert watch.ready
            watch._ctx.stopping.set()
            await asyncio.gather(*watch._ctx.tasks)

    asyncio.run(story())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (403, "Forbidden")])
def test_unserved_kind_is_not_unlisted(code: int, reason: str) -> None:
    async def story() -> None:
        async with HalfDeaf() as stage, await stage.client() as client:
            stage.gadgets = refused(code, reason)
            watch = await watched(stage, client, optional=True)
            await until(lambda: watch.ready)
            await asyncio.sleep(0.4)
            assert watch.unlisted() == []
            watch._ctx.stopping.set()
            await asyncio.gather(*watch._ctx.tasks)

    asyncio.run(story())


@pytest.mark.usefixtures("at_once")
def test_rights_that_were_taken_away_leave_the_kind_unlisted() -> None:
    async def story() -> None:
        async with HalfDeaf() as stage, await stage.client() as client:
            watch = await watched(stage, client, optional=True)
            await stage.until_watched(2)
            stage.gadgets = refused(403, "Forbidden")
            stage.drop()
            await until(watch.unlisted, 30)
            watch._ctx.stopping.set()
            await asyncio.gather(*watch._ctx.tasks)

    asyncio.run(story())


@pytest.mark.usefixtures("at_once")
def test_server_that_answers_nothing_is_no_matter_of_a_kind() -> None:
    async def story() -> None:
        async with HalfDeaf() as stage, await stage.client() as client:
            watch = await watched(stage, client, optional=True)
            await until(lambda: watch.ready)
            await stage.stop()
            await until(lambda: all(one.faults.reason for one in watch.reflectors.values()), 30)
            await asyncio.sleep(0.5)
            assert watch.unlisted() == []
            assert watch.live()
            watch._ctx.stopping.set()
            await asyncio.gather(*watch._ctx.tasks)

    asyncio.run(story())


def test_kinds_are_named_as_kubectl_names_them() -> None:
    assert fact_watch.shown(Watched(KUEUE_WORKLOADS, Widget)) == "workloads.kueue.x-k8s.io"
    assert fact_watch.shown(Watched(WIDGETS, Widget, part="waiting pods")) == "waiting pods"
