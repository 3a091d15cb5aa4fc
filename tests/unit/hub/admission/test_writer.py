"""What is sent to the API server, and what its refusals come to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from berthmaster.hub.admission.core.instructions import (
    Connect,
    DeleteConfig,
    WriteConfig,
    WriteState,
)
from berthmaster.hub.admission.core.objects import check_of
from berthmaster.hub.admission.writer import AdmissionWriter
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kueue.multikueue import MultiKueueConfig
from berthmaster.lib.kueue.workloads import Workload
from tests.bus.tools import story
from tests.unit.hub.admission.hub_objects import CHECK, RESERVED, condition, config, workload
from tests.unit.lib.kube.stage import Handler, Stage, refuse

WORKLOAD = "/apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads/train"
CONFIGS = "/apis/kueue.x-k8s.io/v1beta2/multikueueconfigs"
CLUSTERS = "/apis/kueue.x-k8s.io/v1beta2/multikueueclusters"
CONFLICT = refuse(409, "Conflict", "the object has been modified")
DENIED = refuse(403, "Forbidden", 'workloads is forbidden: User "us" cannot patch resource')


def answer(thing: object) -> Handler:
    async def said(request: web.Request) -> web.StreamResponse:
        return web.json_response(msgspec.to_builtins(thing))

    return said


@asynccontextmanager
async def writer(*answers: Handler) -> AsyncIterator[tuple[Stage, AdmissionWriter]]:
    async with Stage() as stage:
        stage.before = list(answers)
        async with await stage.client() as client:
            yield stage, AdmissionWriter(client, "kueue-system")


def passing(base: Workload) -> WriteState:
    return WriteState(base, CHECK, True, "Placement t4 selects a")


def asked(stage: Stage) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in stage.requests]


@story
async def test_only_our_item_is_applied_with_the_version_that_was_looked_at() -> None:
    async with writer(answer(workload(state="Ready"))) as (stage, mine):
        passed = workload(state="Ready")
        assert await mine.carry_out(passing(workload(version=7))) == Answer(found=passed)
        ((method, path, query),) = stage.requests
        assert (method, path) == ("PATCH", f"{WORKLOAD}/status")
        manager = f"berthmaster-admission-{CHECK}"
        assert query == {"fieldManager": manager, "force": "true"}
        body: Any = stage.bodies[0]
        assert body["metadata"]["resourceVersion"] == "7"
        (item,) = body["status"]["admissionChecks"]
        assert item.pop("lastTransitionTime").endswith("Z")
        message = "Placement t4 selects a"
        assert item == {"name": CHECK, "state": "Ready", "message": message}


@story
async def test_after_a_conflict_what_the_server_has_is_asked_again() -> None:
    fresh = answer(workload(version=9))
    async with writer(CONFLICT, fresh, answer(workload(state="Ready"))) as (stage, mine):
        passed = workload(state="Ready")
        assert await mine.carry_out(passing(workload(version=7))) == Answer(found=passed)
        patch, get = ("PATCH", f"{WORKLOAD}/status"), ("GET", WORKLOAD)
        assert asked(stage) == [patch, get, patch]
        last: Any = stage.bodies[-1]
        assert last["metadata"]["resourceVersion"] == "9"


@pytest.mark.parametrize(
    "found",
    [
        workload(conditions=(RESERVED, condition("Evicted"))),
        workload(state="Ready"),
        workload(conditions=()),
        msgspec.structs.replace(
            workload(), metadata=msgspec.structs.replace(workload().metadata, uid="another")
        ),
    ],
)
def test_who_was_evicted_meanwhile_or_is_another_one_is_left_alone(found: Workload) -> None:
    @story
    async def run() -> None:
        async with writer(CONFLICT, answer(found)) as (stage, mine):
            assert await mine.carry_out(passing(workload())) == Answer()
            assert len(stage.requests) == 2

    run()


@story
async def test_who_is_gone_needs_nothing() -> None:
    async with writer(refuse(404, "NotFound")) as (_, mine):
        assert await mine.carry_out(passing(workload())) == Answer()


@story
async def test_a_configuration_is_written_as_it_was_decided_or_not_at_all() -> None:
    written = config("a", "b", version=5)
    async with writer(answer(written), CONFLICT) as (stage, mine):
        write = WriteConfig(CHECK, ("a", "b"), ("a",), config("a", version=4))
        answered = await mine.carry_out(write)
        assert answered == Answer(found=written)
        body: Any = stage.bodies[0]
        assert body == {
            "metadata": {"annotations": {"berthmaster.io/draining": "a"}, "resourceVersion": "4"},
            "spec": {"clusters": ["a", "b"]},
        }
        answered = await mine.carry_out(write._replace(draining=()))
        assert answered.outcome is Outcome.CONFLICT
        body = stage.bodies[1]
        assert body["metadata"]["annotations"] == {"berthmaster.io/draining": None}
        assert len(stage.requests) == 2, "it is decided anew, not written again"


@story
async def test_a_new_configuration_says_whose_it_is_and_one_that_is_there_is_looked_at() -> None:
    async with writer(answer(config("a")), refuse(409, "AlreadyExists")) as (stage, mine):
        write = WriteConfig(CHECK, ("a",), (), None)
        assert (await mine.carry_out(write)).found == config("a")
        assert asked(stage) == [("POST", CONFIGS)]
        body: Any = stage.bodies[0]
        assert check_of(MultiKueueConfig(**_meta(body))) == CHECK
        assert (await mine.carry_out(write)).outcome is Outcome.CONFLICT


def _meta(body: Any) -> dict[str, Any]:
    return {"metadata": msgspec.convert(body["metadata"], type(config().metadata))}


@story
async def test_a_configuration_that_changed_is_not_deleted() -> None:
    async with writer(CONFLICT) as (stage, mine):
        answered = await mine.carry_out(DeleteConfig(config("a", version=3)))
        assert answered.outcome is Outcome.CONFLICT
        body: Any = stage.bodies[0]
        assert body["preconditions"] == {"resourceVersion": "3"}


@story
async def test_a_cluster_is_made_where_its_secret_is_and_nothing_of_it_is_told() -> None:
    secret = {"metadata": {"name": "multikueue-a"}, "data": {"kubeconfig": "aHVzaA=="}}
    there = [answer(secret), refuse(409, "AlreadyExists")]
    async with writer(refuse(404, "NotFound"), *there) as (stage, mine):
        answered = await mine.carry_out(Connect("a"))
        assert answered == Answer(
            Outcome.GONE, "NoSecret", "there is no Secret kueue-system/multikueue-a"
        )
        answered = await mine.carry_out(Connect("a"))
        assert answered == Answer(), "somebody else's is as good"
        assert asked(stage)[-1] == ("POST", CLUSTERS)
        assert "aHVzaA==" not in str(stage.bodies)


@story
async def test_missing_rights_are_retried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with writer(DENIED, DENIED, refuse(500, "InternalError")) as (_, mine):
        answered = await mine.carry_out(passing(workload()))
        assert (answered.outcome, answered.pause_s) == (Outcome.LATER, 0.25)
        monkeypatch.setattr("berthmaster.lib.kube.denials.GRACE_S", 0.0)
        answered = await mine.carry_out(passing(workload()))
        assert (answered.outcome, answered.why[:22]) == (Outcome.DENIED, "workloads is forbidden")
        answered = await mine.carry_out(passing(workload()))
        assert answered.outcome is Outcome.LATER, "a server that is ill"
