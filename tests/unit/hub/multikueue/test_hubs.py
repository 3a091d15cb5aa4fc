"""A mirror that is pointed at another hub: what is not there says nothing of what is elsewhere."""

import asyncio
from collections import Counter

from aiohttp import web

from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.lib.kube.controller.hub_identity import PART, identify
from berthmaster.lib.messages.workload import Submitted
from berthmaster.lib.runtime.health import Health
from tests.bus.tools import story
from tests.support.patience import hang_s, until
from tests.unit.hub.multikueue.test_modes import HUB_QUEUE, kueue_makes_its_workload, requested
from tests.unit.hub.multikueue.world import World
from tests.unit.lib.kube.stage import Stage, refuse

LEFT = ["submitted", "placed w1", "claimed w1", "admitted w1"]


def _admitted_on_hub_one() -> World:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.settle()
    return world


def test_workloads_name_their_hub_and_so_do_decisions() -> None:
    world = _admitted_on_hub_one()
    submitted = world.log.story(world.name())[0]
    assert isinstance(submitted, Submitted)
    assert submitted.origin is not None
    assert submitted.origin.hub == "hub-one"
    (decision,) = world.decisions()
    assert decision.settings["hub"] == "hub-one"


def test_another_hubs_workloads_are_left_alone_until_a_reconciler_is_there_again() -> None:
    world = _admitted_on_hub_one()
    name, kueue, job = world.name(), world.kueue(), world.hub["HubJob", "team", "train"]
    world.move("hub-two")
    world.wait(120.0)
    assert world.kinds(name) == LEFT
    assert world.core.elsewhere() == Counter({"hub-one": 1})
    assert world.why(name).startswith(
        "admitted: it stands on another hub, whose id is hub-one: this reconciler leaves it alone"
    )
    # What people make there is cared for all the same, under the same name too.
    world.submit(uid="another")
    world.reserve()
    world.settle()
    assert world.kinds(world.name()) == ["submitted", "placed w1", "claimed w1"]

    world.move("hub-one")
    world.put(job)
    world.put(kueue)
    world.finish("train")
    world.settle()
    assert world.kinds(name) == [*LEFT, "succeeded w1"]


def test_what_was_open_on_a_hub_that_is_no_more_is_cancelled() -> None:
    world = _admitted_on_hub_one()
    name = world.name()
    world.move("hub-two", former_hubs=("hub-one",))
    world.settle()
    assert world.kinds(name) == [*LEFT, "cancelled w1"]
    assert world.core.elsewhere() == Counter()


def test_a_request_whose_job_stands_on_another_hub_is_left_alone_too() -> None:
    world = World()
    world.all_workers()
    world.set(HUB_QUEUE)
    world.begin()
    name = requested(world)
    world.settle()
    made = kueue_makes_its_workload(world)
    world.reserve(made)
    world.settle()
    claimed = ["submitted", "placed w1", "claimed w1"]
    assert world.kinds(name) == claimed
    writes = len(world.writes)

    world.move("hub-two")
    world.wait(120.0)
    assert world.kinds(name) == claimed
    assert len(world.writes) == writes  # no second Job
    world.move("hub-two", former_hubs=("hub-one",))
    world.settle()
    assert world.kinds(name) == [*claimed, "cancelled w1"]


def test_stories_from_before_hubs_had_ids_are_this_hubs() -> None:
    world = World()
    world.hub_id = ""
    world.restart()
    world.all_workers()
    world.submit()
    world.reserve()
    world.settle()
    name = world.name()
    world.move("hub-two")
    world.settle()
    assert world.kinds(name) == ["submitted", "placed w1", "claimed w1", "cancelled w1"]


async def _namespace(request: web.Request) -> web.StreamResponse:
    return web.json_response({"metadata": {"name": "kube-system", "uid": "8f2c"}})


@story
async def test_a_hub_is_asked_who_it_is_until_it_answers() -> None:
    async with Stage() as stage:
        stage.before = [
            refuse(403, "Forbidden", 'namespaces "kube-system" is forbidden'),
            refuse(500, "InternalError"),
            refuse(500, "InternalError"),
            _namespace,
        ]
        hub, health = Hub({}), Health()
        async with await stage.client() as client:
            asking = asyncio.create_task(identify(client, hub, health, rights="rbac.yaml"))
            await until(lambda: health.readiness()[1]["parts"])
            _, shown = health.readiness()
            assert "not allowed to get namespace kube-system" in str(shown["parts"])
            await asyncio.wait_for(asking, hang_s())
        assert hub.id == "8f2c"
        assert {path for _, path, _ in stage.requests} == {"/api/v1/namespaces/kube-system"}
        assert health.readiness()[1]["parts"] == {PART: {"ok": True, "why": ""}}
