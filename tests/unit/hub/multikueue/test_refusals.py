"""Writes that the hub refuses: which are tried again soon, and what people hear of them."""

import asyncio
from collections.abc import Iterator

import pytest

from berthmaster.hub.multikueue.apiserver.check_parameters import Parameters
from berthmaster.hub.multikueue.apiserver.writer import HubWriter
from berthmaster.hub.multikueue.core.instructions import MakeJob
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.reconciler import LASTING_TROUBLE_S
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kube.labels import TENANT, WORKLOAD
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.workload import JobRequest, RunSpec
from tests.bus.tools import story
from tests.support.patience import until
from tests.unit.hub.multikueue.hub_objects import own_check
from tests.unit.hub.multikueue.world import World
from tests.unit.lib.kube.stage import Lines
from tests.unit.worker.executor.little_api import LittleApi

DENIED = (403, "Forbidden", 'jobs.batch is forbidden: User "us" cannot create resource "jobs"')
QUOTA = (403, "Forbidden", 'jobs.batch "t" is forbidden: exceeded quota: jobs')


def _make() -> MakeJob:
    labels = {TENANT: "acme", WORKLOAD: "t"}
    manifest = {"kind": "Job", "metadata": {"name": "t", "namespace": "team", "labels": labels}}
    return MakeJob("1", key("acme", "t"), "team", manifest)


@story
async def test_rights_that_are_missing_for_a_moment_are_no_lasting_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fates: Iterator[tuple[int, str, str] | None] = iter([DENIED, None, DENIED, DENIED, QUOTA])
    async with LittleApi() as api:
        client = await api.client(Lines())
        async with client:
            writer = HubWriter(client, Hub({}))
            api.misfortune = lambda method, plural: next(fates)

            async def outcome() -> tuple[str, Outcome, float | None]:
                answer = await writer.carry_out(_make())
                return answer.why[:18], answer.outcome, answer.pause_s

            assert await outcome() == ("jobs.batch is forb", Outcome.LATER, 0.25)
            assert await outcome() == ("", Outcome.DONE, None)
            monkeypatch.setattr("berthmaster.lib.kube.denials.GRACE_S", 0.0)
            assert await outcome() == ("jobs.batch is forb", Outcome.DENIED, None)
            monkeypatch.undo()
            assert await outcome() == ("jobs.batch is forb", Outcome.LATER, 0.25)
            assert await outcome() == ('jobs.batch "t" is ', Outcome.DENIED, None)


def test_a_refusal_that_passes_is_tried_again_as_soon_as_it_says_and_alarms_nobody() -> None:
    world = World()
    world.all_workers()
    world.begin()
    refusals = iter([Answer(Outcome.LATER, why="not yet", pause_s=0.25)])
    world.refusal = lambda _: next(refusals, None)
    world.submit()
    world.reserve()
    world.settle()
    assert world.nominated() == ()
    assert "trouble: not yet" in world.why(world.name())
    world.now_s += 0.3
    world.settle()
    assert world.nominated() == ("w1",)
    assert [tell.reason for tell in world.told] == ["Nominated"]


def test_a_refusal_that_lasts_is_told_and_tried_again_seldom() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.refusal = lambda _: Answer(Outcome.DENIED, why="no such right")
    world.submit()
    world.reserve()
    world.settle()
    world.refusal = lambda write: None
    world.now_s += 2.0
    world.alive()
    world.settle()
    assert world.nominated() == ()
    told = [(tell.reason, tell.note) for tell in world.told]
    assert told == [("NotWritten", "no such right")]
    world.now_s += LASTING_TROUBLE_S
    world.alive()
    world.settle()
    assert world.nominated() == ("w1",)


def test_a_request_whose_job_the_hub_refuses_for_its_own_sake_has_failed_at_once() -> None:
    words = 'Job.batch "train" is invalid: spec.template: Invalid value'
    world = World()
    world.all_workers()
    world.begin()
    world.refusal_of_jobs = Answer(Outcome.DENIED, "Invalid", words, is_about_object=True)
    world.asked_for(JobRequest(id="train", queue="gpu", run=RunSpec(image="train:1")))
    world.settle()
    assert world.kinds(key("acme", "train")) == ["submitted", "failed"]
    assert [type(write) for write in world.writes] == [MakeJob]
    failed = world.log.folds[key("acme", "train")]
    assert failed.reason == words


@story
async def test_the_hubs_answer_says_whether_it_is_about_the_object() -> None:
    invalid = (422, "Invalid", 'Job.batch "t" is invalid')
    async with LittleApi() as api, await api.client(Lines()) as client:
        writer = HubWriter(client, Hub({}))
        found = []
        for fate in (invalid, QUOTA):
            api.misfortune = lambda method, plural, fate=fate: fate  # type: ignore[misc]
            answer = await writer.carry_out(_make())
            found.append((answer.outcome, answer.is_about_object))
    assert found == [(Outcome.DENIED, True), (Outcome.DENIED, False)]


@story
async def test_a_selector_that_cannot_be_read_for_a_moment_counts_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("berthmaster.hub.multikueue.apiserver.check_parameters.EVERY_S", 0.0)
    hub = Hub({})
    hub.put(own_check())
    denied = (403, "Forbidden", 'configmaps "where" is forbidden: User "us" cannot get resource')
    ill = (500, "InternalError", "etcd")
    found: list[str] = []
    async with LittleApi() as api:
        meta = {"name": "where", "namespace": "berth"}
        await api.put("configmaps", {"metadata": meta, "data": {"selector": "tier=gold"}})
        fates: list[tuple[int, str, str] | None] = [ill, None, denied, ill]
        api.misfortune = lambda method, plural: fates.pop(0) if fates else None
        async with await api.client(Lines()) as client:
            parameters = Parameters(
                client, hub, "berth", lambda check, said: found.append(f"{check}: {said}")
            )
            reading = asyncio.create_task(parameters.run())
            await until(lambda: len(found) >= 5)
            monkeypatch.setattr("berthmaster.lib.kube.denials.GRACE_S", 0.0)
            api.misfortune = lambda method, plural: denied
            await until(lambda: "cannot be read" in found[-1])
            reading.cancel()
    assert found[0].startswith("placement: ConfigMap berth/where cannot be read: etcd")
    assert found[1:5] == ["placement: tier=gold"] * 4
