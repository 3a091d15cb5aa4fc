"""`berth serve hub` and `berth serve agent` as their pods run them, against real API servers: each
with nothing but its service account, the rights of deploy/kubernetes and the Secret that `berth
cluster add` made. A Job of kubectl and a request of NATS run from one end to the other.

Where a pod finds its service account is fixed, so each process has a view of files of its own.
"""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from berthmaster.runtime.ports import free_ports
from tests.cluster.deploying import OURS, apply, bind_dispatching, bind_executor, remove
from tests.controlplane.kueue.setup import Kueue, Options
from tests.controlplane.nodes import gpu_node, make_nodes
from tests.controlplane.plane import Plane
from tests.controlplane.planes import Planes
from tests.pipeline.running import environment, run_berth
from tests.support.patience import hang_s, wait_until
from tests.support.ports import free_block

ONE: Final = "worker-1"
ENTER: Final = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && "
    'mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
WAYS: Final = (("--user", "--map-root-user", "--mount"), ("--mount",))


@pytest.fixture(scope="module")
def inside() -> tuple[str, ...]:
    """How to give a process a view of files of its own; skipped where that is not allowed."""
    program = shutil.which("unshare")
    for way in WAYS if program else ():
        line = [str(program), *way, "sh", "-c", "mount -t tmpfs tmpfs /run"]
        if subprocess.run(line, capture_output=True, check=False).returncode == 0:
            return (str(program), *way, "sh", "-c", ENTER)
    pytest.skip("no process may have mounts of its own here (unshare)")


class Side:
    """One side's pod."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def parts(self) -> dict[str, bool]:
        """Which of its parts are in order, as its readiness probe is told."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=hang_s()
            ) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
        except OSError:
            return {}
        return {name: part["ok"] for name, part in json.loads(text)["parts"].items()}

    def wait_ready(self) -> None:
        """Until all of it is."""
        self.until(lambda: (told := self.parts()) and all(told.values()), "it is ready")

    def until(self, ask: Any, what: str) -> None:
        """Wait, as long as it runs; what it said is in the error."""

        def settled() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            return bool(ask())

        try:
            wait_until(settled, what, poll_s=0.2)
        except Exception as error:
            words = self.log.read_text()[-5000:]
            raise AssertionError(f"{error}\n{self.parts()}\n{words}") from error

    def end(self) -> int:
        """SIGTERM, as a kubelet does it; its exit code."""
        self.process.terminate()
        return self.process.wait(hang_s())


@contextmanager
def pod(
    side: str, plane: Plane, folder: Path, inside: tuple[str, ...], **settings: str
) -> Iterator[Side]:
    """A side as its container runs it: settings and API server by environment, the token, CA and
    namespace of its service account where the kubelet puts them."""
    account = folder / "serviceaccount"
    account.mkdir(parents=True)
    (account / "token").write_text(plane.token_for(OURS, f"berth-{side}"))
    (account / "ca.crt").write_bytes(plane.ca_pem)
    (account / "namespace").write_text(OURS)
    port = free_block(16)
    env = environment(folder) | {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
        f"BERTH_{side.upper()}_HTTP_PORT": str(port),
        **settings,
    }
    env.pop("KUBECONFIG", None)
    log = folder / f"{side}.log"
    argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", side]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*inside, str(account), *argv], env=env, stdout=output, stderr=output
        )
    try:
        yield Side(process, port, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(hang_s())


@contextmanager
def deployed(plane: Plane, folder: str) -> Iterator[None]:
    """What `kubectl apply -k` makes of it."""
    try:
        list(apply(plane, folder))
        yield
    finally:
        remove(plane, folder)


class Serving(NamedTuple):
    """Both sides, in order."""

    hub: Side
    agent: Side
    berth: Callable[..., str]  # the command line beside the hub's data; what it prints
    secret: dict[str, str]  # that `berth cluster add` made


def serving(
    owned: ExitStack,
    planes: Planes,
    namespace: str,
    folder: Path,
    inside: tuple[str, ...],
    *,
    mode: str,
    **settings: str,
) -> Serving:
    """The hub's pod and that of the agent which it admits. ``settings``: more of the hub's."""
    data = folder / "data"
    [nats_port] = free_ports(1)
    hub = owned.enter_context(
        pod(
            "hub",
            planes.hub,
            folder / "hub",
            inside,
            BERTH_HUB_MODE=mode,
            BERTH_HUB_DATA_DIR=str(data),
            BERTH_HUB_NATS_PORT=str(nats_port),
            BERTH_HUB_EXTERNAL="localhost",
            BERTH_HUB_SYNC="default",
            **settings,
        )
    )
    hub.wait_ready()

    def berth(*argv: str, command: tuple[str, ...] = ()) -> str:
        done = run_berth(*argv, "--data", str(data), *command, home=folder)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    told = berth("cluster", "add", ONE, "--namespaces", namespace, "--stdout")
    secret = yaml.safe_load(told)["stringData"]
    for name in ("agent.creds", "ca.crt"):
        (folder / name).write_text(secret[name])
    agent = owned.enter_context(
        pod(
            "agent",
            planes[ONE],
            folder / "agent",
            inside,
            BERTH_AGENT_CLUSTER=secret["cluster"],
            BERTH_AGENT_NAMESPACES=secret["namespaces"],
            BERTH_NATS_URL=secret["url"],
            BERTH_NATS_CREDS_FILE=str(folder / "agent.creds"),
            BERTH_NATS_CA_FILE=str(folder / "ca.crt"),
        )
    )
    agent.wait_ready()
    return Serving(hub, agent, berth, secret)


def test_by_their_service_accounts_alone_both_sides_run_a_job_of_kubectl_and_one_of_nats(
    planes: Planes, namespace: str, tmp_path: Path, inside: tuple[str, ...]
) -> None:
    hub_plane, worker = planes.hub, planes[ONE]
    make_nodes(worker, [gpu_node("a", gpus=8)])
    options = Options(dispatcher="berthmaster.io/dispatcher")
    with ExitStack() as owned:
        owned.enter_context(deployed(hub_plane, "overlays/dispatch"))
        owned.enter_context(deployed(worker, "agent"))
        bind_executor(worker, namespace)
        bind_dispatching(hub_plane, namespace)
        k = owned.enter_context(Kueue(planes, namespace, options=options, clusters=[ONE]))
        both = serving(owned, planes, namespace, tmp_path, inside, mode="dispatch")
        hub, agent, berth, secret = both

        k.submit("from-kubectl", requests={"cpu": "1", "nvidia.com/gpu": "1"}, run_s="2")
        hub.until(lambda: k.cluster_of("from-kubectl") == ONE, "it is dispatched")
        hub.until(lambda: k.has("from-kubectl", "Finished"), "its end is on the hub")

        berth("queue", "set", "team", "--via", "direct", "--place", namespace)
        asks = ("--queue", "team", "--gpus", "1", "--image", "busybox")
        berth("submit", "--id", "from-nats", *asks, command=("--", "sleep", "5"))

        def state(*argv: str) -> str:
            return str(json.loads(berth("job", *argv, "--json"))["workload"]["state"])

        agent.until(lambda: state("from-nats") == "succeeded", "the request has run")
        jobs = json.loads(berth("jobs", "--tenant", namespace, "--json"))["workloads"]
        [mine] = [one["id"] for one in jobs if "from-kubectl" in one["id"]]
        hub.until(lambda: state(mine, "--tenant", namespace) == "succeeded", "so says the bus")
        assert (agent.end(), hub.end()) == (0, 0)
        for side in (hub, agent):
            assert "orbidden" not in side.log.read_text()
            assert not any(text in side.log.read_text() for text in secret["agent.creds"].split())
