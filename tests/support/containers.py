"""The containers of a pod as processes of this machine: what a manifest says, and nothing else.

Example: `running(template, folder, volumes={"data": folder / "data"})` starts the init containers
in their order, sidecars among them, then all others. Each process gets the command of its image and
the variables of its container; a path that lies in a mount becomes the file behind the mount. Ports
are free ones, and addresses those that the test gives. A container without a mount for the API
server's token has none.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import find_program
from tests.support.chart import Manifest, one, pod_of
from tests.support.patience import Patience, hang_s

API_MOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
NO_PORT: Final = "-1"


@dataclass
class Running:
    """One container that runs."""

    name: str
    process: "subprocess.Popen[bytes]"
    port: int  # of its health; 0 = it has none
    log: Path

    def parts(self) -> dict[str, bool]:
        """Which of its parts are in order, as its readiness probe is told."""
        try:
            url = f"http://127.0.0.1:{self.port}/readyz"
            with urllib.request.urlopen(url, timeout=hang_s()) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
        except OSError:
            return {}
        return {name: part["ok"] for name, part in json.loads(text)["parts"].items()}

    @property
    def is_ready(self) -> bool:
        """Whether all of it is in order."""
        told = self.parts()
        return bool(told) and all(told.values())

    def end(self) -> int:
        """SIGTERM, as a kubelet does it; its exit code."""
        self.process.terminate()
        return self.process.wait(hang_s())


class Pod:
    """All that run."""

    def __init__(self) -> None:
        self.containers: dict[str, Running] = {}

    def __getitem__(self, name: str) -> Running:
        return self.containers[name]

    def log(self) -> str:
        """What all of them have said."""
        return "".join(each.log.read_text() for each in self.containers.values())

    def until(self, ask: Callable[[], object], what: str) -> None:
        """Wait, as long as all run."""
        patience = Patience(what)
        while not ask():
            for each in self.containers.values():
                code = each.process.poll()
                assert code is None, (each.name, code, each.log.read_text()[-3000:])
            patience.look(self.log()[-3000:])
            time.sleep(0.1)

    def wait_ready(self) -> None:
        """Until each container that has a readiness over HTTP is ready."""
        served = [each for each in self.containers.values() if each.port]
        self.until(lambda: all(each.is_ready for each in served), "all containers are ready")

    def end(self) -> dict[str, int]:
        """End all, sidecars last; their exit codes."""
        return {each.name: each.end() for each in reversed(self.containers.values())}


@contextmanager
def running(
    template: Manifest,
    folder: Path,
    *,
    volumes: Mapping[str, Path],
    env: Mapping[str, str],
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    config: Mapping[str, str] | None = None,
    ports: Mapping[int, int] | None = None,
    addresses: Mapping[str, str] | None = None,
    inside: tuple[str, ...] = (),
) -> Iterator[Pod]:
    """Run a pod's template. ``env``: of every process; ``config``: what ConfigMaps hold; ``ports``:
    others in place of these, such as nats-server's; ``addresses``: the same of whole addresses, in
    arguments and variables; ``inside``: what begins the command of a
    container that has the token of volume `api`, before the folder of the token."""
    folder.mkdir(parents=True, exist_ok=True)
    pod = Pod()
    spec = template["spec"]
    with ExitStack() as owned:
        for each in (*spec.get("initContainers", ()), *spec["containers"]):
            is_init = each in spec.get("initContainers", ())
            port = free_ports(1)[0] if "BERTH_HTTP_PORT" in _names(each) else 0
            argv, own = _command(each, volumes, secrets or {}, config or {}, addresses or {})
            if own.get("BERTH_HTTP_PORT") == NO_PORT:
                port = 0
            elif port:
                own["BERTH_HTTP_PORT"] = str(port)
            mounts = {mount["mountPath"]: mount for mount in each["volumeMounts"]}
            if API_MOUNT in mounts:
                argv = [*inside, str(volumes[mounts[API_MOUNT]["name"]]), *argv]
            log = folder / f"{each['name']}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    argv, env={**env, **own}, cwd=folder, stdout=output, stderr=output
                )
            owned.callback(_kill, process)
            one = Running(each["name"], process, port, log)
            if is_init and each.get("restartPolicy") != "Always":
                code = process.wait(hang_s())
                assert code == 0, (each["name"], code, log.read_text()[-3000:])
                continue
            pod.containers[each["name"]] = one
            if is_init:
                pod.until(_started(each, one, ports or {}), f"{each['name']} has started")
        yield pod


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait(hang_s())


def _names(container: Manifest) -> set[str]:
    return {each["name"] for each in container.get("env", ())}


def _command(
    container: Manifest,
    volumes: Mapping[str, Path],
    secrets: Mapping[str, Mapping[str, str]],
    config: Mapping[str, str],
    addresses: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """Its command line, and its own variables."""
    image = container["image"].rpartition("/")[2].partition(":")[0]
    argv = container.get("command") or [
        *("python3", "-m", "berthmaster.cli.main", "serve", image),
    ]
    program = {"python3": sys.executable, "nats-server": find_program}.get(argv[0], argv[0])
    argv = [program() if callable(program) else program, *argv[1:], *container.get("args", ())]
    own = dict(config) if "envFrom" in container else {}
    for each in container.get("env", ()):
        if "value" in each:
            own[each["name"]] = each["value"]
        elif "fieldRef" in each["valueFrom"]:
            own[each["name"]] = f"{container['name']}-0"
        else:
            key = each["valueFrom"]["secretKeyRef"]
            own[each["name"]] = secrets[key["name"]][key["key"]]

    def translated(text: str) -> str:
        for mount in sorted(container["volumeMounts"], key=lambda one: -len(one["mountPath"])):
            path = mount["mountPath"]
            if (text == path or text.startswith(f"{path}/")) and mount["name"] in volumes:
                return f"{volumes[mount['name']] / mount.get('subPath', '')}{text[len(path) :]}"
        for before, now in addresses.items():
            text = text.replace(before, now)
        return text

    return [translated(word) for word in argv], {
        name: translated(value) for name, value in own.items() if name != "HOME"
    }


def _started(container: Manifest, one: Running, ports: Mapping[int, int]) -> Callable[[], bool]:
    probe = container["startupProbe"]
    if "httpGet" in probe:
        return lambda: one.is_ready
    [port] = [
        each["containerPort"]
        for each in container["ports"]
        if each["name"] == probe["tcpSocket"]["port"]
    ]

    def answers() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", ports.get(port, port))) == 0

    return answers


def volume_mounts(container: Manifest, volume: str) -> dict[str, str]:
    """mountPath -> subPath, of one volume."""
    return {
        each["mountPath"]: each.get("subPath", "")
        for each in container["volumeMounts"]
        if each["name"] == volume
    }


def write_token(folder: Path, token: str, ca_pem: bytes, namespace: str) -> Path:
    """What a pod finds of its ServiceAccount; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(ca_pem)
    (folder / "namespace").write_text(namespace)
    return folder


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """What a pod finds of a Secret; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


class RunningBus:
    """The one server of a bundled bus, on ports of this machine."""

    def __init__(self, objects: list[Manifest], folder: Path) -> None:
        self._objects = objects
        self._folder = folder
        self.port, self.monitor = free_ports(2)
        # What other pods are told, and where that is here.
        self.addresses = {
            "berth-nats.berth-system.svc:4222": f"127.0.0.1:{self.port}",
            "berth-nats-0.berth-nats-peers.berth-system.svc:8222": f"127.0.0.1:{self.monitor}",
            "127.0.0.1:8222": f"127.0.0.1:{self.monitor}",
        }

    @contextmanager
    def running(self, secret: Mapping[str, bytes]) -> Iterator[Pod]:
        """Run it with what the Secret berth-bus holds."""
        bus = write_files(self._folder / "bus", secret)
        data = self._folder / "bus-data"
        data.mkdir(exist_ok=True)
        config = one(self._objects, "ConfigMap", "berth-nats")["data"]["nats-server.conf"]
        for before, now in {
            "/etc/berth-bus": str(bus),
            "/data": str(data),
            "0.0.0.0:4222": f"127.0.0.1:{self.port}",
            "0.0.0.0:8222": f"127.0.0.1:{self.monitor}",
        }.items():
            assert before in config
            config = config.replace(before, now)
        (bus / "nats-server.conf").write_text(config)
        with running(
            pod_of(self._objects, "berth-nats"),
            self._folder / "nats",
            volumes={"bus": bus, "data": data},
            env={},
        ) as pod:
            [server] = pod.containers.values()
            pod.until(lambda: b"Server is ready" in server.log.read_bytes(), "the bus is ready")
            yield pod
