"""The pipeline of deploy/compose.yaml: a job is submitted, placed and run, whatever is killed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berthmaster.cli.audit.core import AuditReport
from berthmaster.cli.audit.report import audit
from berthmaster.client import Client
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.api import WorkloadView
from berthmaster.lib.messages.families import EVENT_KINDS
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.nats.streams import ARCHIVE, DEAD, SNAPSHOTS, stream_info
from tests.containers.compose import Stack
from tests.support.patience import Patience

pytestmark = pytest.mark.timeout(3600)  # the first test builds all images

SERVICES = (
    "gateway-1",
    "resolver-1",
    "resolver-2",
    "scorer-1",
    "archivist-1",
    "emulator-1",
    "door-1",
    "door-2",
)
STORY = ["submitted", "placed", "claimed", "running", "succeeded"]
ENDED = ("succeeded", "failed", "cancelled")


def job(name: str, duration_s: float = 1.0) -> JobRequest:
    """A job that a node of any model can run, and that takes so long."""
    return JobRequest(
        id=name, pod_sets=(PodSet(gpus=1),), expected_duration_s=duration_s, max_evictions=50
    )


@asynccontextmanager
async def connected(stack: Stack, keys: Path, user: str) -> AsyncIterator[Client]:
    async with Client.connect(
        stack.url(),
        tenant="default",
        creds_file=creds_file(keys, user),
        inbox_prefix=inbox_prefix(user),
        plaintext=True,  # the engine may be another machine's
    ) as client:
        yield client


async def until(client: Client, name: str, *states: str) -> WorkloadView:
    """A workload, once it is in one of these states."""
    patience = Patience(f"{name} is {states}")
    while True:
        view = (await client.get(name)).workload
        if view.state in states:
            return view
        patience.look(view)
        await asyncio.sleep(0.1)


async def kinds(client: Client, name: str) -> list[str]:
    """What happened to a workload, in order, without what had no effect."""
    story = (await client.get(name, story=True)).story
    return [EVENT_KINDS[type(each.event)] for each in story if not each.void]


async def submitted_and_run(stack: Stack, keys: Path, name: str) -> None:
    """A job's whole life, as a tenant sees it."""
    async with connected(stack, keys, "tenant.default") as tenant:
        await tenant.submit(job(name))
        ended = await until(tenant, name, *ENDED)
        # Emulated jobs fail now and then, as real ones do: that is an ending too.
        assert ended.state in ("succeeded", "failed"), ended
        story = await kinds(tenant, name)
        assert story[:4] == STORY[:4]
        assert [kind for kind in story if kind in ENDED] == [ended.state]


def test_a_job_is_submitted_placed_and_run_in_containers(stack: Stack, keys: Path) -> None:
    stack.wait_ready(*SERVICES)
    asyncio.run(submitted_and_run(stack, keys, "first"))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_is_killed_and_replaced_loses_nothing(
    stack: Stack, keys: Path, name: str
) -> None:
    """One job runs while the container dies, one is submitted afterwards; both end once."""
    stack.wait_ready(*SERVICES)
    asyncio.run(killed_in_mid_flight(stack, keys, name))


async def killed_in_mid_flight(stack: Stack, keys: Path, name: str) -> None:
    async with connected(stack, keys, "tenant.default") as tenant:
        runs = f"runs-while-{name}-dies"
        await tenant.submit(job(runs, duration_s=8.0))
        before = await until(tenant, runs, "running")
        stack.kill(name)
        stack.start(name)
        stack.wait_ready(name)
        after = await until(tenant, runs, *ENDED)
        assert (after.attempt, after.cluster) == (before.attempt, before.cluster)
        story = await kinds(tenant, runs)
        assert [kind for kind in story if kind in ENDED] == [after.state]
        assert story.count("claimed") == 1
    await submitted_and_run(stack, keys, f"after-{name}")


def test_the_bus_is_killed_and_replaced_and_what_was_accepted_is_still_there(
    stack: Stack, keys: Path
) -> None:
    stack.wait_ready(*SERVICES)
    asyncio.run(accepted_before(stack, keys))
    stack.kill("nats-1")
    stack.start("nats-1")
    stack.wait("nats-1", lambda state: state["Health"]["Status"] == "healthy")
    stack.wait_ready(*SERVICES)
    asyncio.run(ended_after(stack, keys))


async def accepted_before(stack: Stack, keys: Path) -> None:
    async with connected(stack, keys, "tenant.default") as tenant:
        await tenant.submit(job("outlives-the-bus", duration_s=3.0))


async def ended_after(stack: Stack, keys: Path) -> None:
    async with connected(stack, keys, "tenant.default") as tenant:
        ended = await until(tenant, "outlives-the-bus", *ENDED)
        assert (await kinds(tenant, "outlives-the-bus")).count(ended.state) == 1


def test_nobody_needed_more_than_its_permissions_and_nothing_died(stack: Stack, keys: Path) -> None:
    """Last: over all that was done above."""
    stack.wait_ready(*SERVICES)
    complaints = {
        name: [line for line in stack.logs(name) if is_complaint(line)] for name in SERVICES
    }
    assert complaints == {name: [] for name in SERVICES}
    assert asyncio.run(stored(stack, keys)) == {
        "ARCHIVE": True,
        "OBJ_SNAPSHOTS": True,
        "DEAD": False,
    }
    report = asyncio.run(audited(stack, keys))
    assert report.findings == ()
    assert report.clean
    ended = report.succeeded + report.failed
    # One a test for the first and the one over the bus, two for each container that was killed.
    assert (report.submitted, ended) == (2 + 2 * len(SERVICES), 2 + 2 * len(SERVICES))


def is_complaint(line: str) -> bool:
    """A denied permission, a dead task or a dead letter; also what is no line of a log."""
    try:
        event = json.loads(line).get("event", "")
    except ValueError:
        return True  # a traceback, or something that was printed
    return event in ("permission violation", "task_died", "main_died", "dead letter")


async def stored(stack: Stack, keys: Path) -> dict[str, bool]:
    """Whether these streams have messages: what was archived, saved, or could not be handled."""
    async with connected(stack, keys, "operator") as operator:
        found = {}
        for stream in (ARCHIVE, SNAPSHOTS, DEAD):
            info = await stream_info(operator.connection, stream)
            found[stream] = info.state.messages > 0
        return found


async def audited(stack: Stack, keys: Path) -> AuditReport:
    """What an auditor finds who reads nothing but the bus."""
    async with connected(stack, keys, "operator") as operator:
        return await audit(operator.connection)
