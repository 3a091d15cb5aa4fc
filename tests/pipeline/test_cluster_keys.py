"""`berth cluster`: worker clusters are let in and shut out while everything runs."""

import asyncio
import contextlib
import json
import os
import stat
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.jwts import parse_creds
from tests.bus.tools import Lines, Settings, story
from tests.pipeline.running import Up, alive, berth_up, run_berth
from tests.support.patience import ANSWER_S, until

EXTERNAL = ("--services", "gateway", "--external", "localhost", "--external", "hub.test")


def agent(secret: dict[str, Any], folder: Path) -> Settings:
    """How an agent connects that was given this Secret."""
    data = secret["stringData"]
    (folder / "agent.creds").write_text(data["agent.creds"])
    (folder / "ca.crt").write_text(data["ca.crt"])
    user = f"agent.{data['cluster']}"
    url = data["url"].split(",")[0]
    return Settings(url, folder / "agent.creds", inbox_prefix(user), folder / "ca.crt")


async def listed(up: Up) -> Any:
    return await asyncio.to_thread(up.json, "cluster", "list")


@story
async def test_a_cluster_is_let_in_seen_and_shut_out_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as owned:
        up = await asyncio.to_thread(owned.enter_context, berth_up(tmp_path / "berth", *EXTERNAL))
        assert up.view["url"].startswith("tls://127.0.0.1:")
        port = up.view["url"].rpartition(":")[2]
        added = await asyncio.to_thread(up.json, "cluster", "add", "berlin")
        file = up.folder / "clusters" / "berlin.yaml"
        url = f"tls://localhost:{port},tls://hub.test:{port}"
        assert added == {
            "cluster": "berlin",
            "key": added["key"],
            "url": url,
            "namespace": "berth-system",
            "file": str(file),
            "apply": [
                (
                    "helm --kube-context berlin -n berth-system upgrade --install "
                    "--create-namespace --reset-then-reuse-values berth-agent deploy/chart "
                    "-f deploy/run/images.yaml "
                    "--set role=worker --set 'worker.namespaces={default}'"
                ),
                f"kubectl --context berlin apply -f {file} && rm {file}",
            ],
            "ends": added["ends"],
            "server_told": True,
        }
        ends_s = datetime.fromisoformat(added["ends"]).timestamp()
        assert round((ends_s - time.time()) / 86_400) == 30
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        secret = yaml.safe_load(file.read_text())
        assert secret["stringData"]["agent.creds"].strip() not in json.dumps(added)

        settings = agent(secret, tmp_path)
        known = {"cluster": "berlin", "key": added["key"], "ends": added["ends"]}
        assert await listed(up) == [known | {"connected": False}]
        async with await Connection.open(settings, "agent", Lines(), timeout_s=ANSWER_S) as conn:
            assert await listed(up) == [known | {"connected": True}]
            gone = await asyncio.to_thread(up.json, "cluster", "remove", "berlin")
            assert gone == {"cluster": "berlin", "server_told": True}
            await until(lambda: not conn.connected, "its connection is closed")
        with pytest.raises(BusError, match="refuses this user"):
            await Connection.open(settings, "agent", Lines(), timeout_s=10)
        assert await listed(up) == []
        refused = await asyncio.to_thread(up.berth, "cluster", "add", "berlin")
        assert refused.returncode != 0
        assert "`berth cluster add berlin --again` if it is the same cluster" in refused.stderr
        back = await asyncio.to_thread(up.json, "cluster", "add", "berlin", "--again")
        assert back["key"] != added["key"]

        # The others were there all the time, and no seed is in any log.
        assert all(alive(pid) for pid in up.pids().values())
        logs = [path.read_text() for path in up.folder.rglob("*.log")]
        assert not any("reconnected" in log for log in logs)
        assert not any(secret["stringData"]["agent.creds"].strip() in log for log in logs)


def test_the_secret_goes_to_standard_output_only_when_asked(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth", *EXTERNAL) as up:
        told = up.berth("cluster", "add", "a/b", "--stdout", "--namespace", "gpu")
        assert told.returncode == 0, told.stderr
        secret = yaml.safe_load(told.stdout)
        assert secret["stringData"]["cluster"] == "a/b"
        assert secret["metadata"]["namespace"] == "gpu"
        assert secret["stringData"]["agent.creds"].strip() not in told.stderr
        assert told.stderr.startswith("a/b may connect to tls://localhost:")
        assert not (up.folder / "clusters").exists()
        again = yaml.safe_load(up.berth("cluster", "add", "a/b", "--stdout").stdout)
        assert again["stringData"] == secret["stringData"]  # the same until it is removed
        renewed = up.berth("cluster", "renew", "a/b", "--stdout", "--days", "60").stdout
        was, is_ = (
            parse_creds(each["stringData"]["agent.creds"])
            for each in (secret, yaml.safe_load(renewed))
        )
        assert (was.seed == is_.seed, was.jwt == is_.jwt) == (True, False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("add", "x", "--url", "nats://h:1"), "right is tls://HOST:PORT; never in plain text"),
        (("add", "x", "--url", "tls://h:1"), "certificate is for localhost, 127.0.0.1, hub.test"),
        (("add", "x", "--namespaces", " ,"), "member [0] is empty; right is A,B"),
        (("add", ""), "an empty name cannot stand in a subject"),
        (("remove", "x"), "no cluster 'x' has a key here; those that have: berlin"),
    ],
)
def test_what_cannot_work_is_told_and_changes_nothing(
    folder: Path, flags: tuple[str, ...], said: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "keys").iterdir()}
    told = run_berth("cluster", *flags, "--data", str(folder), home=folder.parent)
    assert (told.returncode, said in told.stderr) == (1, True), told.stderr
    assert {path: path.stat().st_mtime_ns for path in (folder / "keys").iterdir()} == before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a bus that does not run any more."""
    folder = tmp_path_factory.mktemp("stopped") / "berth"
    with berth_up(folder, *EXTERNAL):
        pass
    told = run_berth(*("cluster", "add", "berlin", "--data", str(folder)), home=folder.parent)
    assert told.returncode == 0, told.stderr
    assert "No server runs on this folder now: it learns of it when it starts." in told.stdout
    return folder


def test_a_bus_of_one_machine_says_how_it_becomes_one_for_others(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth", "--services", "gateway") as up:
        assert up.view["url"].startswith("nats://127.0.0.1:")
        told = up.berth("cluster", "add", "berlin")
    assert told.returncode == 1
    assert "start it with --external HOST" in told.stderr


def test_a_folder_without_keys_is_told(tmp_path: Path) -> None:
    told = run_berth("cluster", "list", "--data", str(tmp_path), home=tmp_path)
    assert told.returncode == 1
    assert f"no keys in {tmp_path}: name the data folder" in told.stderr
    assert os.listdir(tmp_path) == []  # noqa: PTH208 # nothing was made either
