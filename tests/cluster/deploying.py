"""deploy/kubernetes applied and taken away again, as kubectl would; and its pods run as processes.

Where a pod finds its service account is fixed, so each process has a view of files of its own.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from berthmaster.cli.secret import EXECUTOR_ROLE, FIGURES_ROLE
from berthmaster.doctor.rights import AGENT_ACCOUNT, DISPATCHING_ROLE, HUB_ACCOUNT
from berthmaster.runtime.ports import free_ports
from tests.controlplane.api import ApiError
from tests.controlplane.plane import Plane
from tests.controlplane.planes import Planes
from tests.pipeline.running import environment, run_berth
from tests.support.containers import Pod, running, write_token
from tests.support.kustomize import Manifest, render
from tests.support.patience import wait_until

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
OURS: Final = "berth-system"
ONE: Final = "worker-1"
ENTER: Final = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && "
    'mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
WAYS: Final = (("--user", "--map-root-user", "--mount"), ("--mount",))


def apply(plane: Plane, folder: str) -> Iterator[Manifest]:
    """Server-side apply of everything, as `kubectl apply --server-side -k` does it."""
    for document in render(DEPLOY / folder):
        yield plane.api.apply(document)


def remove(plane: Plane, folder: str) -> None:
    """Everything again, and our namespace."""
    for document in reversed(render(DEPLOY / folder)):
        try:
            plane.api.delete(plane.api.path_of(document))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    if plane.api.find(f"/api/v1/namespaces/{OURS}") is not None:
        plane.api.delete(f"/api/v1/namespaces/{OURS}")
        plane.api.delete(f"/api/v1/namespaces/{OURS}/pods", gracePeriodSeconds=0)
    gone = f"/api/v1/namespaces/{OURS}"
    wait_until(lambda: plane.api.find(gone) is None, f"namespace {OURS} is gone")


def bind_executor(plane: Plane, namespace: str) -> None:
    """Let the agent make jobs in a namespace."""
    account = {"kind": "ServiceAccount", "name": AGENT_ACCOUNT, "namespace": OURS}
    bind_in(plane, namespace, EXECUTOR_ROLE, account)
    bind_in(plane, namespace, FIGURES_ROLE, account)


def bind_dispatching(plane: Plane, namespace: str) -> None:
    """Let the hub nominate clusters for the Workloads of a namespace."""
    account = {"kind": "ServiceAccount", "name": HUB_ACCOUNT, "namespace": OURS}
    bind_in(plane, namespace, DISPATCHING_ROLE, account)


def bind_in(plane: Plane, namespace: str, role: str, subject: Manifest) -> None:
    """A ClusterRole's rights in one namespace."""
    group = "rbac.authorization.k8s.io"
    plane.api.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
    )


def own_mounts() -> tuple[str, ...]:
    """Begins a command that has a view of files of its own; skips where that is not allowed."""
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
