"""A job that chooses its GPUs, and what `berth suggest` says after its end, on a real bus."""

import json
from pathlib import Path
from typing import Any

from berthmaster.control.usage.service import main as usage_main
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.lib.messages.api import Refusal, SubmitReply
from berthmaster.lib.messages.suggest import Suggestions, SuggestRequest
from berthmaster.lib.messages.workload import Claimed, Running, Succeeded
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import ask, client, gateway, in_loop, running, store
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
    place |= {"cluster": "c1", "attempt": 1}
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
