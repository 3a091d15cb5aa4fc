"""`berth serve hub` and `berth serve agent` as processes, with API servers that do not answer: what
they show, what they restart, whom they let in, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from berthmaster.runtime.ports import free_ports
from tests.pipeline.running import alive, children_of, environment, run_berth, wait_until_gone
from tests.support.patience import Patience, hang_s
from tests.support.ports import free_block

LIMIT_S = 120.0  # a dozen processes on a machine that has other things to do
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {"token": "t"}}],
}
HUB_PARTS = {
    *(
        "nats-server",
        "gateway",
        "resolver",
        "scorer",
        "archivist",
        "usage",
        "door",
        "accounts",
        "inventory-hub",
        "multikueue",
    ),
    "start",
}


@dataclass
class Pod:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def page(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of one of its pages."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=hang_s()
            ) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def parts(self) -> dict[str, bool]:
        try:
            told = self.page("/readyz")[1]["parts"]
        except OSError:
            return {}
        return {name: part["ok"] for name, part in told.items()}

    def events(self, event: str) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]  # the last line may be under way
        lines = whole.splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in told if each.get("event") == event]

    def until(self, true: Callable[[], object], what: str) -> None:
        patience = Patience(what)
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            patience.look(self.log.read_text())
            time.sleep(0.05)


@contextmanager
def pod(folder: Path, side: str, **settings: str) -> Iterator[Pod]:
    """A side as its container would run it: settings by environment."""
    folder.mkdir(exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    port = free_block(16)
    env = environment(folder) | {
        f"BERTH_{side.upper()}_KUBECONFIG": str(kubeconfig),
        f"BERTH_{side.upper()}_HTTP_PORT": str(port),
        **settings,
    }
    log = folder / f"{side}.log"
    argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", side]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=env, stdout=output, stderr=output)
    try:
        yield Pod(process, port, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(hang_s())


def serve_hub(folder: Path) -> Any:
    [port] = free_ports(1)
    return pod(
        folder,
        "hub",
        BERTH_HUB_DATA_DIR=str(folder / "data"),
        BERTH_HUB_NATS_PORT=str(port),
        BERTH_HUB_EXTERNAL="localhost",
        BERTH_HUB_SYNC="default",
    )


PIPELINE_IS_UP = (
    "nats-server",
    "gateway",
    "resolver",
    "scorer",
    "archivist",
    "usage",
    "door",
    "accounts",
)


def test_a_hub_shows_each_child_restarts_the_dead_lets_an_agent_in_and_ends_by_itself(
    tmp_path: Path,
) -> None:
    with serve_hub(tmp_path / "hub") as hub:
        hub.until(
            lambda: all(hub.parts().get(name) for name in PIPELINE_IS_UP), "the pipeline is up"
        )
        away = ("multikueue", "inventory-hub")  # their API server does not answer
        hub.until(lambda: not any(hub.parts().get(name, True) for name in away), "that is told")
        status, told = hub.page("/readyz")
        assert (status, set(told["parts"])) == (503, HUB_PARTS)
        assert hub.page("/healthz")[0] == 200  # and that is no reason to restart the pod

        [gateway] = [
            each["pid"]
            for each in hub.events("child")
            if (each["child"], each["condition"]) == ("gateway", "starting")
        ]
        os.kill(gateway, signal.SIGKILL)
        hub.until(
            lambda: any(
                (each["child"], each["condition"], each["restarts"]) == ("gateway", "ready", 1)
                for each in hub.events("child")
            ),
            "gateway is back",
        )

        data = tmp_path / "hub" / "data"
        port = json.loads((data / "external.json").read_text())["url"].rpartition(":")[2]
        added = run_berth(
            *("cluster", "add", "berlin", "--namespaces", "ml", "--stdout", "--data", str(data)),
            home=tmp_path,
        )
        assert added.returncode == 0, added.stderr
        secret = yaml.safe_load(added.stdout)["stringData"]
        assert secret["url"] == f"tls://localhost:{port}"
        for name in ("agent.creds", "ca.crt"):
            (tmp_path / name).write_text(secret[name])
        with pod(
            tmp_path / "agent",
            "agent",
            BERTH_AGENT_CLUSTER=secret["cluster"],
            BERTH_AGENT_NAMESPACES=secret["namespaces"],
            BERTH_NATS_URL=secret["url"],
            BERTH_NATS_CREDS_FILE=str(tmp_path / "agent.creds"),
            BERTH_NATS_CA_FILE=str(tmp_path / "ca.crt"),
        ) as agent:

            def connected() -> bool:
                told = run_berth("cluster", "list", "--data", str(data), "--json", home=tmp_path)
                return [each["connected"] for each in json.loads(told.stdout)] == [True]

            agent.until(connected, "the agent is on the bus")
            assert set(agent.parts()) == {
                "inventory-berlin",
                "executor-berlin",
                "figures-berlin",
                "start",
            }
            assert ends_by_itself(agent)
        assert ends_by_itself(hub)
        assert secret["agent.creds"].strip() not in hub.log.read_text() + agent.log.read_text()


def ends_by_itself(running: Pod) -> bool:
    """Whether a pod and its children end after SIGTERM, none of them by force (exit code 4)."""
    children = children_of(running.process.pid)
    assert children
    running.process.send_signal(signal.SIGTERM)
    code = running.process.wait(hang_s())
    assert code == 0, (code, running.log.read_text()[-3000:])
    wait_until_gone(children)
    return True


def test_children_die_with_a_pod_that_is_killed(tmp_path: Path) -> None:
    with serve_hub(tmp_path / "hub") as hub:
        hub.until(lambda: len(children_of(hub.process.pid)) == 9, "all are started")
        children = children_of(hub.process.pid)
        hub.process.kill()
        wait_until_gone(children)
        assert not any(alive(pid) for pid in children)


def test_an_agent_without_its_key_ends_with_the_reason(tmp_path: Path) -> None:
    with pod(
        tmp_path / "agent",
        "agent",
        BERTH_AGENT_CLUSTER="berlin",
        BERTH_AGENT_NAMESPACES="ml",
        BERTH_NATS_CREDS_FILE=str(tmp_path / "none.creds"),
    ) as agent:
        assert agent.process.wait(hang_s()) == 3
        [why] = [each["why"] for each in agent.events("cannot_start") if each["service"] == "agent"]
        assert "cannot start (exit code 3)" in why
        assert "none.creds" in agent.log.read_text()


def test_a_hub_on_the_folder_of_another_ends_with_the_reason(tmp_path: Path) -> None:
    with serve_hub(tmp_path / "one") as first:
        first.until(lambda: "nats-server" in first.parts(), "it has its port")
        data = tmp_path / "one" / "data"
        with pod(
            tmp_path / "two", "hub", BERTH_HUB_DATA_DIR=str(data), BERTH_HUB_NATS_PORT="1"
        ) as second:
            assert second.process.wait(hang_s()) == 3
            [why] = [each["why"] for each in second.events("cannot_start")]
            assert f"a `berth up` is running on {data} already" in why
