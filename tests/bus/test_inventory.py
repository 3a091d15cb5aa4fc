"""The inventory's shell on a real bus, before an API server that can say anything."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from berthmaster.hub.members import service as members_service
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.kube.controller import fact_watch
from berthmaster.lib.kube.resources import CLUSTER_PROFILES, CLUSTER_QUEUES, NODES, PODS
from berthmaster.lib.kube.service_client import ProfileSettings
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.inventory.service import main
from berthmaster.worker.inventory.settings import InventorySettings
from tests.bus.doors import door
from tests.bus.kubeapi import KubeApi
from tests.bus.shells import client, in_loop, running
from tests.bus.tools import Lines, Settings, accounts_of
from tests.cluster.inventorying import Told
from tests.support.patience import ANSWER_S, hang_s, until

GPU = "nvidia.com/gpu"


def node(name: str, **fields: Any) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "8", "memory": "16Gi", GPU: "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status} | fields


def pod(name: str, on: str, gpus: int) -> dict[str, Any]:
    asked = {"resources": {"requests": {"cpu": "1", GPU: str(gpus)}}}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": on, "containers": [asked]},
        "status": {"phase": "Running"},
    }


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Told]:
    async with client(url) as conn, door(url):
        told = Told(conn, url)
        mirroring = asyncio.create_task(told.run())
        try:
            yield told
        finally:
            mirroring.cancel()
            await asyncio.wait({mirroring})


@asynccontextmanager
async def inventory(
    api: KubeApi, folder: Path, url: str, **settings: Any
) -> AsyncIterator[Context[InventorySettings]]:
    wanted: dict[str, Any] = {"cluster": "east", "http_port": -1} | settings
    given = InventorySettings(nats_url=url, kubeconfig=api.kubeconfig(folder), **wanted)
    with mock.patch.object(fact_watch, "ABSENT_S", 0.5):
        async with running("inventory", given, main) as ctx:
            yield ctx


@in_loop
async def test_inventory_with_malformed_objects_reports_others(
    server: Server, tmp_path: Path
) -> None:
    async with KubeApi() as api, listening(server.url) as told:
        api.serve(PODS)
        await api.put(NODES, node("good"))
        negative = {"allocatable": {"cpu": "8", GPU: "-2"}, "conditions": []}
        await api.put(NODES, node("negative", status=negative))
        await api.put(NODES, node("odd", spec={"taints": "none"}))
        await api.put(PODS, pod("a", "good", 1))
        await api.put(PODS, {"metadata": {"name": "b", "namespace": "team"}, "spec": 7})
        async with inventory(api, tmp_path, server.url) as ctx:
            await told.lives()
            good = await told.until(subjects.node("east", "good"), NodeReport, lambda _: True)
            assert (len(good.gpus), good.foreign.gpu_milli, good.taints) == (2, 1000, ())
            bad = await told.until(subjects.node("east", "negative"), NodeReport, lambda _: True)
            assert (bad.gpus, bad.taints[0].value) == (
                (),
                "nvidia.com/gpu: '-2' is negative, which no resource can be",
            )
            odd = subjects.node("east", "odd")
            closed = await told.until(odd, NodeReport, lambda _: True)
            assert (closed.schedulable, closed.allocatable.cpu_milli) == (False, 0)
            assert closed.taints[0].value.startswith("cannot be read: Expected `array`")
            figure = ctx.metrics.gauge("problems", "", ["kind"])
            await until(lambda: figure.labels("nodes")._value.get() == 2)
            assert figure.labels("unreadable pods")._value.get() == 1

            # Mended, one changes and one goes that never could be read.
            await api.put(NODES, node("negative"))
            await told.until(
                subjects.node("east", "negative"), NodeReport, lambda fact: len(fact.gpus) == 2
            )
            await api.remove(NODES, "odd")
            await told.until(odd, NodeGone, lambda _: True)
            await until(lambda: figure.labels("nodes")._value.get() == 0)


@in_loop
async def test_kueue_that_comes_later_is_found(server: Server, tmp_path: Path) -> None:
    async with KubeApi() as api, listening(server.url) as told:
        api.serve(NODES, PODS)
        async with inventory(api, tmp_path, server.url, labels=("region=eu", "tier=")) as ctx:
            await told.lives()
            profile = await told.until(
                subjects.profile("east"),
                ClusterProfile,
                lambda fact: "berth/kubernetes-version" in fact.properties,
            )
            assert profile.labels == {"region": "eu", "tier": ""}
            assert profile.properties["berth/kueue"] == "absent"
            assert ctx.health.readiness()[0]
            await api.put(CLUSTER_QUEUES, {"metadata": {"name": "q"}, "spec": {}, "status": {}})
            await told.until(
                subjects.queue_report("east", "q"), QueueReport, lambda fact: not fact.gone
            )


@mock.patch.object(fact_watch, "SILENT_LIMIT_S", 1.0)
@in_loop
async def test_silent_watch_ends_sign_of_life(server: Server, tmp_path: Path) -> None:
    async with KubeApi() as api, listening(server.url) as told:
        api.serve(PODS)
        await api.put(NODES, node("a"))
        async with inventory(api, tmp_path, server.url) as ctx:
            await told.lives()
            api.silent = True
            await until(lambda: not ctx.health.readiness()[0])
            signs = told.signs()
            await asyncio.sleep(2)
            assert told.signs() == signs
            why = ctx.health.readiness()[1]["parts"]["sign of life"]["why"]  # type: ignore[index]
            assert "nothing heard for" in why
            api.silent = False
            await told.lives()


@pytest.mark.parametrize("user", ["inventory", "agent"])
@in_loop
async def test_its_user_may_do_all_that_it_does(tmp_path: Path, user: str) -> None:
    cluster = "east.example"  # a name with a dot, which is a token of its own spelling
    name = f"{user}.{subjects.token(cluster)}"
    keys = tmp_path / "keys"
    extra = accounts_of(keys, ("setup", "door", "operator", name))
    config = ServerConfig(sync="default", extra=extra)
    with Server(tmp_path / "nats", config) as server:

        def settings(who: str) -> Settings:
            return Settings(server.url, creds_file(keys, who), inbox_prefix(who))

        async with await Connection.open(
            settings("setup"), "setup", Lines(), timeout_s=ANSWER_S
        ) as conn:
            await ensure_streams(conn)
        async with (
            await Connection.open(settings("operator"), "op", Lines(), timeout_s=ANSWER_S) as conn,
            KubeApi() as api,
            door(
                server.url,
                nats_creds_file=creds_file(keys, "door"),
                inbox_prefix=inbox_prefix("door"),
            ) as opened,
        ):
            told = Told(conn, server.url)
            mirroring = asyncio.create_task(told.run())
            api.serve(PODS)
            await api.put(NODES, node("a"))
            async with inventory(
                api,
                tmp_path,
                server.url,
                cluster=cluster,
                nats_creds_file=creds_file(keys, name),
                inbox_prefix=inbox_prefix(name),
            ) as ctx:
                where = subjects.alive(cluster)
                await told.until(where, ClusterAlive, lambda _: True)
                await told.until(subjects.node(cluster, "a"), NodeReport, lambda _: True)
                await asyncio.sleep(0.3)  # a violation is told beside everything else
                assert "permissions" not in str(ctx.health.readiness())
                assert "permissions" not in str(opened.health.readiness())
            mirroring.cancel()
            await asyncio.wait({mirroring})


@in_loop
async def test_the_hubs_user_may_tell_memberships(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    extra = accounts_of(keys, ("setup", "operator", "members"))
    with Server(tmp_path / "nats", ServerConfig(sync="default", extra=extra)) as server:

        def settings(who: str) -> Settings:
            return Settings(server.url, creds_file(keys, who), inbox_prefix(who))

        async with await Connection.open(
            settings("setup"), "setup", Lines(), timeout_s=ANSWER_S
        ) as conn:
            await ensure_streams(conn)
        async with (
            await Connection.open(settings("operator"), "op", Lines(), timeout_s=ANSWER_S) as conn,
            KubeApi() as api,
        ):
            told = Told(conn, server.url)
            mirroring = asyncio.create_task(told.run())
            await api.put(
                CLUSTER_PROFILES,
                {"metadata": {"name": "east", "namespace": "fleet"}, "spec": {}, "status": {}},
            )
            given = ProfileSettings(
                nats_url=server.url,
                kubeconfig=api.kubeconfig(tmp_path),
                http_port=-1,
                nats_creds_file=creds_file(keys, "members"),
                inbox_prefix=inbox_prefix("members"),
            )
            async with running("members", given, members_service.main) as ctx:
                await told.until(subjects.membership("east"), Membership, lambda _: True)
                await asyncio.sleep(0.3)
                assert "permissions" not in str(ctx.health.readiness())
            mirroring.cancel()
            await asyncio.wait({mirroring})


@in_loop
async def test_a_missing_kubeconfig_stops_the_start(tmp_path: Path) -> None:
    given = InventorySettings(cluster="east", kubeconfig=tmp_path / "none", http_port=-1)
    with pytest.raises(CannotStart, match="none"):
        async with running("inventory", given, main):
            pass


@in_loop
async def test_inventory_without_api_ends_on_sigterm(server: Server, tmp_path: Path) -> None:
    async with KubeApi() as api:
        kubeconfig = api.kubeconfig(tmp_path)
    async with client(server.url), door(server.url):
        argv = ["serve", "inventory", "--cluster", "east", "--kubeconfig", str(kubeconfig)]
        flags = ["--nats-url", server.url, "--http-port", "-1"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "berthmaster.cli.main",
            *argv,
            *flags,
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert process.stderr is not None
        async with asyncio.timeout(hang_s()):
            while b"mirroring failed" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            await process.stderr.read()
            assert await process.wait() == 0
