"""The chart applied and taken away again; and its pods run as processes.

Where a pod finds its service account is fixed, so each process has a view of files of its own.
"""

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from berthmaster.cli.cluster.secret import EXECUTOR_ROLE, FIGURES_ROLE
from berthmaster.cli.doctor.rights import AGENT_ACCOUNT, DISPATCHING_ROLE, HUB_ACCOUNT
from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.supervisor.hub_folder import BUS_SECRET, KEYS_SECRET
from tests.pipeline.running import environment, run_berth
from tests.support.chart import WITHOUT, Manifest, Values, pod_of, render
from tests.support.containers import Pod, RunningBus, running, write_files, write_token
from tests.support.patience import wait_until

OURS: Final = "berth-system"
ONE: Final = "worker-1"
EXTERNAL: Final = {"external": {"names": ["localhost"]}}
ENTER: Final = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && "
    'mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
WAYS: Final = (("--user", "--map-root-user", "--mount"), ("--mount",))


def apply(plane: Plane, role: str, values: Values = WITHOUT) -> Iterator[Manifest]:
    """Server-side apply of everything that the chart makes."""
    yield plane.api.apply(_namespace())
    for document in sorted(render(role, values), key=lambda one: one["kind"] != "Namespace"):
        yield plane.api.apply(document)


def _namespace() -> Manifest:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    meta = {"name": OURS, "labels": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def remove(plane: Plane, role: str, values: Values = WITHOUT) -> None:
    """Everything again, and our namespace."""
    for document in reversed(render(role, values)):
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
def deployed(plane: Plane, role: str, values: Values = WITHOUT) -> Iterator[None]:
    """What the chart makes of these values."""
    try:
        list(apply(plane, role, values))
        yield
    finally:
        remove(plane, role, values)


class Serving(NamedTuple):
    """Both sides, in order."""

    hub: Pod
    agent: Pod
    berth: Callable[..., str]  # the command line beside the folder of keys; what it prints
    secret: dict[str, str]  # that `berth cluster add` made


class HubPods:
    """The hub's pods of these objects, with one NATS server, until ``owned`` ends."""

    def __init__(
        self,
        owned: ExitStack,
        plane: Plane,
        objects: list[Manifest],
        folder: Path,
        inside: tuple[str, ...],
        **settings: str,
    ) -> None:
        self._owned, self._plane, self._folder = owned, plane, folder
        self.bus = RunningBus(objects, folder)
        self.data = folder / "data"
        self._common: dict[str, Any] = {
            "env": environment(folder) | api_server(plane),
            "config": settings,
            "addresses": self.bus.addresses,
            "inside": inside,
        }
        self._run(objects, "berth-accounts", data=self.data)
        mounted = {name: secret_of(plane, name) for name in (BUS_SECRET, KEYS_SECRET)}
        owned.enter_context(self.bus.running(mounted[BUS_SECRET]))
        write_files(folder / "keys", mounted[KEYS_SECRET])
        self.hub = self.start(objects)

    def start(self, objects: list[Manifest]) -> Pod:
        """Start the pod berth-hub; an earlier one has ended."""
        own = {"data": self._folder / "memory", "keys": self._folder / "keys"}
        self.hub = self._run(objects, "berth-hub", **own)
        self.hub.wait_ready()
        return self.hub

    def _run(self, objects: list[Manifest], name: str, **volumes: Path) -> Pod:
        volumes["data"].mkdir(exist_ok=True)
        volumes["api"] = account(self._plane, self._folder / f"{name}-api", name)
        pod = running(pod_of(objects, name), self._folder / name, volumes=volumes, **self._common)
        return self._owned.enter_context(pod)


def run_agent(
    owned: ExitStack,
    plane: Plane,
    template: Manifest,
    secret: dict[str, str],
    folder: Path,
    inside: tuple[str, ...],
) -> Pod:
    """The agent's pod with this Secret, until ``owned`` ends."""
    files = {name: secret[name].encode() for name in ("agent.creds", "ca.crt")}
    key = write_files(folder / "key", files)
    agent = owned.enter_context(
        running(
            template,
            folder,
            volumes={"key": key, "api": account(plane, folder / "api", "berth-agent")},
            env=environment(folder) | api_server(plane),
            secrets={"berth-agent": secret},
            inside=inside,
        )
    )
    agent.wait_ready()
    return agent


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
    """The pods of both sides, as the chart says, on one server. ``settings``: more of the hub's."""
    objects = render("hub", {**hub_of(mode), "bus": {"replicas": 1, **EXTERNAL}})
    pods = HubPods(owned, planes.hub, objects, folder, inside, **settings)

    def berth(*argv: str, command: tuple[str, ...] = ()) -> str:
        done = run_berth(*argv, "--data", str(pods.data), *command, home=folder)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    told = berth("cluster", "add", ONE, "--namespaces", namespace, "--stdout")
    secret = yaml.safe_load(told)["stringData"]
    template = pod_of(render("worker"), "berth-agent")
    agent = run_agent(owned, planes[ONE], template, secret, folder / "agent", inside)
    return Serving(pods.hub, agent, berth, secret)


def hub_of(mode: str) -> dict[str, object]:
    """The values of a mode."""
    return {"hub": {"mode": mode}}


def secret_of(plane: Plane, name: str) -> dict[str, bytes]:
    """What a Secret holds."""
    found = plane.api.get(f"/api/v1/namespaces/{OURS}/secrets/{name}").get("data", {})
    return {key: base64.b64decode(value) for key, value in found.items()}


def account(plane: Plane, folder: Path, name: str) -> Path:
    """What a pod finds of its ServiceAccount."""
    return write_token(folder, plane.token_for(OURS, name), plane.ca_pem, OURS)


def api_server(plane: Plane) -> dict[str, str]:
    """Where a pod finds its API server."""
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.port)}


def merged(contexts: dict[str, Plane]) -> dict[str, Any]:
    """A kubeconfig with a context of each name."""
    whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for name, plane in contexts.items():
        one = yaml.safe_load(plane.kubeconfig.read_text())
        for part, inner in (("clusters", "cluster"), ("users", "user")):
            whole.setdefault(part, []).append({"name": name, inner: one[part][0][inner]})
        context = {"name": name, "context": {"cluster": name, "user": name}}
        whole.setdefault("contexts", []).append(context)
    return whole
