"""Jobs that choose their GPUs, by history or by trials, and `berth suggest`, on a real bus."""

import asyncio
import json
from pathlib import Path
from typing import Any

from berthmaster.control.usage.service import main as usage_main
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.lib.messages.api import GetReply, GetRequest, Refusal, SubmitReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.suggest import Suggestions, SuggestRequest
from berthmaster.lib.messages.workload import (
    Claimed,
    Progress,
    Progressed,
    Running,
    Succeeded,
)
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import ask, client, gateway, in_loop, order, running, store
from tests.bus.test_resolver import Fleet, resolver
from tests.support.patience import eventually

TENANT = "team"


async def ran(fleet: Fleet, conn: Connection, name: str, pods: dict[str, Any]) -> int:
    """Submit a job, let it succeed, and return the GPUs of its pod."""
    body = {"id": name, "pod_sets": [pods], "run": {"image": "train"}}
    reply = await ask(conn, "submit", json.dumps(body).encode(), tenant=TENANT)
    assert isinstance(reply, SubmitReply), reply
    placed = await fleet.placed(name)
    assert placed is not None
    after = (await fleet.log.story(TENANT, name))[-1].sequence
    place: dict[str, Any] = {"tenant": TENANT, "id": name, "at_s": 0.0, "by": "x"}
    place |= {"cluster": placed.cluster, "attempt": placed.attempt}
    after = await store(conn, Claimed(**place, after=after, executor="x"))
    after = await store(conn, Running(**place, after=after, pods=placed.pods))
    last: dict[str, Any] = {"digest": "d", "submitted_at_s": placed.submitted_at_s}
    await store(conn, Succeeded(**place, after=after, **last))
    return placed.request.pod_sets[0].gpus


@in_loop
async def test_job_chooses_gpus_and_its_configuration_is_suggested(tmp_path: Path) -> None:
    settings = {"http_port": -1, "store_dir": tmp_path / "usage"}
    with Server(tmp_path / "nats") as server:
        url = server.url
        async with (
            client(url) as conn,
            gateway(url),
            resolver(url),
            running("usage", UsageSettings(nats_url=url, **settings), usage_main),  # type: ignore[arg-type]
        ):
            fleet = Fleet(conn)
            await fleet.report(gpus=2)
            assert await ran(fleet, conn, "chose", {"choose": {"gpus": [4, 2]}}) == 2
            assert await ran(fleet, conn, "plain", {"gpus": 1}) == 1
            wrong = json.dumps({"id": "w", "pod_sets": [{"gpus": 3, "choose": {"gpus": [1]}}]})
            refusal = await ask(conn, "submit", wrong.encode(), tenant=TENANT)
            assert isinstance(refusal, Refusal)
            assert refusal.field == "pod_sets[0].gpus"
            reply: Any = None

            async def suggested() -> bool:
                nonlocal reply
                reply = await ask(conn, "suggest", SuggestRequest(id="chose"), tenant=TENANT)
                return isinstance(reply, Suggestions) and len(reply.configurations) == 2

            await eventually(suggested, "both jobs in the store", moves=lambda: 0)
            seen = [(one.layout, one.model, one.changes) for one in reply.configurations]
            assert seen == [("1x2", "T4", ()), ("1x1", "T4", ("fewer_gpus",))]
            unknown = await ask(conn, "suggest", SuggestRequest(id="nobody"), tenant=TENANT)
            assert isinstance(unknown, Refusal)
            assert (unknown.code, unknown.field) == ("not_found", "id")


async def tried(fleet: Fleet, conn: Connection, name: str, steps: int) -> None:
    """Run a trial to the end of its time, with two progress lines so many steps apart."""
    placed = await fleet.placed(name)
    assert placed is not None
    place: dict[str, Any] = {"tenant": TENANT, "id": name, "at_s": 0.0, "by": "x"}
    place |= {"cluster": placed.cluster, "attempt": placed.attempt}
    after = (await fleet.log.story(TENANT, name))[-1].sequence
    after = await store(conn, Claimed(**place, after=after, executor="x"))
    after = await store(conn, Running(**place, after=after, pods=placed.pods))
    after = await store(conn, Progressed(**place, after=after, progress=Progress(step=0)))
    await asyncio.sleep(0.2)
    after = await store(conn, Progressed(**place, after=after, progress=Progress(step=steps)))
    last: dict[str, Any] = {"digest": "d", "submitted_at_s": placed.submitted_at_s}
    await store(conn, Succeeded(**place, after=after, **last))


@in_loop
async def test_job_runs_in_the_configuration_that_its_trials_found_best(tmp_path: Path) -> None:
    trial = {"budget_s": 60, "configurations": [{"gpus": 1}, {"gpus": 2, "env": {"A": "b"}}]}
    body = json.dumps({"id": "train", "pod_sets": [{"trial": trial}], "run": {"image": "i"}})
    with Server(tmp_path / "nats") as server:
        url = server.url
        async with client(url) as conn, gateway(url), resolver(url):
            fleet = Fleet(conn)
            await fleet.report(gpus=4)
            refusal = await ask(conn, "submit", body.encode(), tenant=TENANT)
            assert isinstance(refusal, Refusal)
            assert refusal.field == "pod_sets[0].trial"
            assert "--trials" in refusal.expected
            setting = QueueSetting(queue="default", trial_gpu_h_a_day=10.0)
            await order(conn, "queue", setting)
            reply = await ask(conn, "submit", body.encode(), tenant=TENANT)
            assert isinstance(reply, SubmitReply), reply
            await tried(fleet, conn, "train-t0", 100)
            await tried(fleet, conn, "train-t1", 1000)
            placed = await fleet.placed("train")
            assert placed is not None
            assert placed.request.pod_sets[0].gpus == 2
            assert placed.request.run.env == {"A": "b"}
            shown = await ask(conn, "get", GetRequest(id="train"), tenant=TENANT)
            assert isinstance(shown, GetReply)
            first, second = shown.workload.trials
            assert (first.ended, second.ended) == ("succeeded", "succeeded")
            assert first.steps_per_s is not None
            assert second.steps_per_s is not None
            assert first.steps_per_s < second.steps_per_s
