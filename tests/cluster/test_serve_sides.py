"""The containers of both sides as deploy/kubernetes says, against real API servers: each with
nothing but its service account, the rights of deploy/kubernetes and the Secret that `berth cluster
add` made. A Job of kubectl and a request of NATS run from one end to the other.

Where a pod finds its service account is fixed, so each process has a view of files of its own.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from berthmaster.runtime.ports import free_ports
from tests.cluster.deploying import DEPLOY, OURS, apply, bind_dispatching, bind_executor, remove
from tests.controlplane.kueue.setup import Kueue, Options
from tests.controlplane.nodes import gpu_node, make_nodes
from tests.controlplane.plane import Plane
from tests.controlplane.planes import Planes
from tests.pipeline.running import environment, run_berth
from tests.support.containers import Pod, running, write_token
from tests.support.kustomize import Manifest, render

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

    hub: Pod
    agent: Pod
    berth: Callable[..., str]  # the command line beside the hub's data; what it prints
    secret: dict[str, str]  # that `berth cluster add` made


def serving(
    owned: ExitStack,
    planes: Planes,
    namespace: str,
    folder: Path,
    inside: tuple[str, ...],
    *,
    overlay: str,
    **settings: str,
) -> Serving:
    """The pods of both sides, as their manifests say. ``settings``: more of the hub's."""
    data = folder / "data"
    data.mkdir()
    nats_port, monitor_port = free_ports(2)
    hub_objects = render(DEPLOY / overlay)
    hub_pod = template_of(hub_objects, "StatefulSet")
    [keys] = [one for one in hub_pod["spec"]["initContainers"] if one["name"] == "keys"]
    keys["command"] += ["--port", str(nats_port), "--monitor-port", str(monitor_port)]
    [mode] = [one["data"] for one in hub_objects if one["kind"] == "ConfigMap"]
    hub = owned.enter_context(
        running(
            hub_pod,
            folder / "hub",
            volumes={"data": data, "api": account(planes.hub, folder / "hub-api", "berth-hub")},
            env=environment(folder) | api_server(planes.hub),
            config={
                **mode,
                "BERTH_HUB_EXTERNAL": "localhost",
                "BERTH_HUB_SYNC": "default",
                **settings,
            },
            ports={4222: nats_port},
            inside=inside,
        )
    )
    hub.wait_ready()

    def berth(*argv: str, command: tuple[str, ...] = ()) -> str:
        done = run_berth(*argv, "--data", str(data), *command, home=folder)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    told = berth("cluster", "add", ONE, "--namespaces", namespace, "--stdout")
    secret = yaml.safe_load(told)["stringData"]
    key = folder / "key"
    key.mkdir()
    for name in ("agent.creds", "ca.crt"):
        (key / name).write_text(secret[name])
    agent = owned.enter_context(
        running(
            template_of(render(DEPLOY / "agent"), "Deployment"),
            folder / "agent",
            volumes={"key": key, "api": account(planes[ONE], folder / "agent-api", "berth-agent")},
            env=environment(folder) | api_server(planes[ONE]),
            secrets={"berth-agent": secret},
            inside=inside,
        )
    )
    agent.wait_ready()
    return Serving(hub, agent, berth, secret)


def template_of(objects: list[Manifest], kind: str) -> Manifest:
    """The pod of the one object of this kind."""
    [owner] = [one for one in objects if one["kind"] == kind]
    template: Manifest = owner["spec"]["template"]
    return template


def account(plane: Plane, folder: Path, name: str) -> Path:
    """What a pod finds of its ServiceAccount."""
    return write_token(folder, plane.token_for(OURS, name), plane.ca_pem, OURS)


def api_server(plane: Plane) -> dict[str, str]:
    """Where a pod finds its API server."""
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.port)}


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
        both = serving(owned, planes, namespace, tmp_path, inside, overlay="overlays/dispatch")
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
        assert {*agent.end().values(), *hub.end().values()} == {0}
        for side in (hub, agent):
            assert "orbidden" not in side.log()
            assert not any(text in side.log() for text in secret["agent.creds"].split())
