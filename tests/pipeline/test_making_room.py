"""Who leaves its place in a running fleet: a queue gets back what it is guaranteed, whoever is
killed meanwhile; people hold, evict, move and drain; a job moves so that another fits."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from berthmaster.cli.audit.report import audit
from berthmaster.client import Client
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import Divide, EvictionRequested, JobRequest, PodSet
from tests.pipeline.chaos import IMPATIENT, Rig, repeats, rig
from tests.support.patience import hang_s

BALANCES = {"BERTH_RESOLVER_REBALANCE_AFTER_S": "0.5"}  # and no queue says so at first
GUARANTEE = QueueSetting(queue="prod", guarantee_gpu_milli=2000)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("room")
    with rig(folder, "--clusters", "2", "--nodes", "4", env=IMPATIENT | BALANCES) as running:
        yield running


async def until(berth: Client, state: str, *names: str) -> None:
    try:
        async with asyncio.timeout(hang_s()):
            while any([(await berth.get(name)).workload.state != state for name in names]):
                await asyncio.sleep(0.05)
    except TimeoutError:
        told = {name: await berth.why(name) for name in names}
        raise AssertionError(told) from None


async def runs(berth: Client, name: str, attempt: int) -> tuple[str, str]:
    """Where it runs once it has begun for so many times, and on which node."""
    async with asyncio.timeout(hang_s()):
        while True:
            view = (await berth.get(name)).workload
            if (view.state, view.attempt) == ("running", attempt):
                choice = (await berth.why(name)).choice
                assert choice is not None
                return choice.cluster, choice.pods[0].node
            await asyncio.sleep(0.05)


async def ordered(berth: Client, since: int, number: int) -> list[str]:
    """Who is told to make room, the first of them."""
    found: list[str] = []
    async with asyncio.timeout(hang_s()), aclosing(berth.watch(since=since)) as events:
        async for seen in events:
            if isinstance(seen.event, EvictionRequested):
                found.append(seen.event.id)
            if len(found) == number:
                break
    return found


def asked(name: str, gpus: int, queue: str = "default", **fields: Any) -> JobRequest:
    pods = PodSet(gpus=gpus, cpu_milli=100, memory_mib=64, **fields)
    return JobRequest(id=name, queue=queue, pod_sets=(pods,), expected_duration_s=1e7)


async def nodes_of(berth: Client) -> list[NodeReport]:
    facts = [seen.fact for seen in await berth.fleet(nodes=True)]
    return [fact for fact in facts if isinstance(fact, NodeReport)]


async def guarantee_story(up: Rig) -> None:
    async with up.client() as berth:
        gpus = sum(len(node.gpus) for node in await nodes_of(berth))
        lent = [f"lent-{n}" for n in range(gpus)]
        for name in lent:
            await berth.submit(asked(name, 1))
        await until(berth, "running", *lent)

        await berth.set_queue(GUARANTEE)
        since = await berth.last_sequence()
        await berth.submit(asked("mine", 2, "prod"))
        moved = await ordered(berth, since, 2)
        # Those who decide and those who end the pods die in the middle of it.
        await up.kill("resolver", "emulator", "door")
        await until(berth, "running", "mine")
        await until(berth, "queued", *moved)
        assert len(set(moved)) == 2, moved
        await until(berth, "running", *(name for name in lent if name not in moved))

        await berth.cancel("mine")
        await until(berth, "running", *lent)  # they start again
        report = await audit(berth.connection)
        assert (report.findings, report.accounted, report.evictions) == ((), True, 2), report
        await repeats(berth)
        for name in lent:
            await berth.cancel(name)
        await until(berth, "cancelled", *lent)


def test_a_guarantee_comes_back_from_those_who_borrowed_it_whoever_is_killed(up: Rig) -> None:
    asyncio.run(guarantee_story(up))


async def division_story(up: Rig) -> None:
    async with up.client() as berth:
        nodes = await nodes_of(berth)
        gpus = sum(len(node.gpus) for node in nodes)
        wide = msgspec.structs.replace(asked("wide", 1, count=gpus), divide=Divide())
        async with asyncio.timeout(hang_s()):  # its nodes are told one by one
            while "divided over 2 clusters" not in (await berth.dry_run(wide)).summary:
                await asyncio.sleep(0.05)
        await berth.submit(wide)
        await up.kill("resolver", "emulator", "door")  # wherever it is by now
        await until(berth, "running", "wide")
        parts = (await berth.get("wide")).workload.parts
        assert sum(part.pods for part in parts) == gpus
        assert {part.cluster for part in parts} == {node.cluster for node in nodes}
        await until(berth, "running", *(part.id for part in parts))
        assert "divided over 2 clusters: " in said(up, "why", "wide")
        for part in parts:
            assert f"{part.id}: " in said(up, "job", "wide")
        assert refused(up, "cancel", parts[0].id).endswith("wide, the job that this is a part of")
        await berth.cancel("wide")
        await until(berth, "cancelled", "wide", *(part.id for part in parts))
        report = await audit(berth.connection)
        assert (report.findings, report.accounted) == ((), True), report
        await repeats(berth)


def test_a_gang_over_clusters_starts_and_ends_as_one_whoever_is_killed(up: Rig) -> None:
    asyncio.run(division_story(up))


def said(up: Rig, *argv: str) -> str:
    """What a command says that must succeed, on one line."""
    done = up.berth(*argv)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def told(up: Rig, *argv: str) -> Any:
    done = up.berth(*argv, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(up: Rig, *argv: str) -> str:
    """The last line of what a command says that must not succeed."""
    done = up.berth(*argv)
    assert done.returncode in (1, 2), done.stdout
    return done.stderr.strip().splitlines()[-1].removeprefix("berth: ").removeprefix("Error: ")


async def holds(up: Rig, berth: Client, full: dict[str, str], here: str) -> None:
    """Held, it stays behind one that came later, though there is room for it."""
    await berth.submit(asked("late", 1))
    waits = "a workload that runs; this one waits for its place"
    assert refused(up, "evict", "late") == f'id: "late" refused (conflict): {waits}'
    assert said(up, "hold", "late", "--reason", "not yet") == "late is held"
    why = (await berth.why("late")).summary
    assert why.startswith("waits: held by tenant default for "), why
    assert why.endswith(" s: not yet"), why
    assert refused(up, "whatif", "preempt", "late").endswith("; this one is held by tenant default")
    room = told(up, "whatif", "preempt", "--queue", "prod", "--gpus", "2")
    assert {each["id"] for each in room["ended"]} & set(full.values()), room
    await berth.cancel(full[here])
    await berth.submit(asked("next", 1))
    await until(berth, "running", "next")
    assert (await berth.get("late")).workload.state == "queued"
    assert said(up, "release", "late") == "late is not held"
    assert (await runs(berth, "late", 1))[0] == here


async def moves(up: Rig, berth: Client, full: dict[str, str], here: str, there: str) -> str:
    """Evicted, it waits and runs again; moved, it goes when there is room. Its node at last."""
    assert said(up, "evict", "late") == "late is to go: it is ended and waits again"
    assert (await runs(berth, "late", 2))[0] == here
    assert said(up, "move", "late", "--to", there).startswith("late is to move: it goes to")
    assert f"wants it in {there}; it goes when" in (await berth.why("late")).summary
    assert (await berth.get("late")).workload.state == "running"
    await berth.cancel(full[there])
    cluster, node = await runs(berth, "late", 3)
    assert cluster == there
    left_out = (await berth.why("late")).filtered
    assert left_out == {here: f"room was kept for it on {there}"}
    return node


async def drains(up: Rig, berth: Client, there: str, node: str) -> None:
    """Drained, a node is left, and is open again when that is said."""
    supposed = told(up, "whatif", "drain", there, node)
    assert [each["id"] for each in supposed["ended"]] == ["late"], supposed
    assert told(up, "drain", there, node, "--by", "2h", "--reason", "new racks")["sequence"]
    assert await runs(berth, "late", 4) != (there, node)
    [cordon] = (await berth.cordons()).cordons
    assert (cordon.cluster, cordon.node, cordon.drain) == (there, node, True)
    assert (cordon.jobs, cordon.gpus, cordon.reason) == (0, 0, "new racks")
    assert f"{there}/{node} drained" in said(up, "problems", "cordons")
    assert said(up, "uncordon", there, node) == f"node {node} of {there} is open again"
    assert said(up, "problems", "cordons") == "nothing is cordoned"


async def slips(up: Rig, berth: Client, ended: str, there: str, model: str) -> None:
    """What cannot be is refused, with what would be right."""
    node = next(each.node for each in await nodes_of(berth) if each.cluster == there)
    over = f'id: "{ended}" refused (conflict): a workload that has not ended; this one cancelled'
    assert refused(up, "hold", ended) == over
    assert refused(up, "move", ended) == over
    slip = refused(up, "drain", there, f"{node}0")
    assert slip == f"drain: {there} has no node {node}0, did you mean {node}?"
    past = refused(up, "drain", there, "--by", "2020-01-01T00:00")
    assert past.startswith("--by 2020-01-01T00:00: a time ahead is wanted"), past
    for name in ("late", "next"):  # they may hold all GPUs of that model
        await berth.cancel(name)
    await until(berth, "cancelled", "late", "next")
    await berth.submit(asked("bound", 1, gpu_models=(model,)))
    await until(berth, "running", "bound")
    nowhere = refused(up, "move", "bound", "--to", there)
    assert nowhere == f"--to: bound cannot go to {there} now: no such GPU model"


async def verbs_story(up: Rig) -> None:
    async with up.client() as berth:
        nodes = await nodes_of(berth)
        here, there = sorted({node.cluster for node in nodes})
        await berth.set_queue(GUARANTEE)
        full = {here: f"full-{here}", there: f"full-{there}"}
        for cluster, name in full.items():
            number = sum(len(node.gpus) for node in nodes if node.cluster == cluster)
            request = asked(name, 1, count=number)
            await berth.submit(msgspec.structs.replace(request, clusters=(cluster,)))
        await until(berth, "running", *full.values())

        await holds(up, berth, full, here)
        node = await moves(up, berth, full, here, there)
        await drains(up, berth, there, node)
        model = next(each.gpus[0].model for each in nodes if each.cluster == here)
        await slips(up, berth, full[here], there, model)
        report = await audit(berth.connection)
        assert (report.findings, report.accounted) == ((), True), report
        await repeats(berth)


def test_people_hold_evict_move_and_drain(up: Rig) -> None:
    asyncio.run(verbs_story(up))


async def singles(berth: Client, cluster: str, number: int) -> dict[str, str]:
    """So many jobs of one GPU that run in a cluster, and their nodes."""
    names = [f"single-{n}" for n in range(number)]
    for name in names:
        await berth.submit(msgspec.structs.replace(asked(name, 1), clusters=(cluster,)))
    return {name: (await runs(berth, name, 1))[1] for name in names}


async def rebalance_story(up: Rig) -> None:
    async with up.client() as berth:
        open_ = await berth.list(states=("queued", "placed", "claimed", "running"))
        old = [each.id for each in open_.workloads]
        for name in old:
            await berth.cancel(name)
        await until(berth, "cancelled", *old)
        nodes = [node for node in await nodes_of(berth) if len(node.gpus) > 1]
        here = nodes[0].cluster
        number = sum(len(n.gpus) for n in await nodes_of(berth) if n.cluster == here)
        on = await singles(berth, here, number)
        # On two nodes one GPU each is free: a job of two does not fit.
        first, second = [node.node for node in nodes if node.cluster == here][:2]
        for node in (first, second):
            await berth.cancel(next(name for name, at in on.items() if at == node))
        await berth.submit(msgspec.structs.replace(asked("pair", 2), clusters=(here,)))
        async with asyncio.timeout(hang_s()):
            while "ended" not in (supposed := told(up, "whatif", "rebalance", "--moves", "1")):
                await asyncio.sleep(0.2)
        [moves], [waits] = supposed["ended"], supposed["rebalances"]
        assert (moves["cluster"], moves["to"], moves["for_id"]) == (here, here, "default/pair")
        assert {*moves["nodes"], *moves["to_nodes"]} == {first, second}
        assert waits["gain_gpu_s"] > 2 * waits["cost_gpu_s"] > 0
        assert (await berth.get("pair")).workload.state == "queued"  # it was asked, and that is all

        assert said(up, "queue", "set", "default", "--rebalances", "queue").endswith("is set")
        assert await runs(berth, moves["id"], 2) == (here, *moves["to_nodes"])
        assert await runs(berth, "pair", 1) == (here, *moves["nodes"])
        why = (await berth.why(moves["id"])).summary
        assert f"told to move from {here} to {here} by decision" in why, why
        assert "1 job was told to move for it" in (await berth.why("pair")).summary
        report = await audit(berth.connection)
        assert (report.findings, report.accounted) == ((), True), report
        await repeats(berth)


def test_a_job_moves_so_that_one_fits_that_waits(up: Rig) -> None:
    asyncio.run(rebalance_story(up))
