"""Runs deploy/compose.yaml through testcontainers: the file that people use is what is tested.

Only what that file uses is understood; a key that this module does not know is an error and not a
silent difference. Two things differ from `docker compose up`: ports are taken from the free ones,
and names are only known inside a network of its own.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import docker
import yaml
from docker.errors import APIError, NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.support.patience import Hung, Patience

# The reaper is an image from a registry, which need not be reachable; `Stack.__exit__` removes
# everything, and an engine that was started for the run ends with it.
testcontainers_config.ryuk_disabled = True

VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
KNOWN: Final = frozenset(
    {
        "cap_drop",
        "depends_on",
        "deploy",
        "entrypoint",
        "environment",
        "healthcheck",
        "image",
        "init",
        "ports",
        "read_only",
        "restart",
        "secrets",
        "security_opt",
        "stop_grace_period",
        "tmpfs",
        "user",
        "volumes",
    }
)
LOG_TAIL_LINES: Final = 30


class NotUp(AssertionError):
    """A container did not get as far as it should; the text has the end of its log."""


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1]) or match[2] or ""

    content: dict[str, Any] = yaml.safe_load(VARIABLE.sub(value, path.read_text()))
    asked = {n: s for n, s in content["services"].items() if "profiles" not in s}  # of nobody
    content["services"] = asked
    for name, service in asked.items():
        if unknown := set(service) - KNOWN:
            raise ValueError(f"{path}: service {name}: this reader knows nothing of {unknown}")
    return content


def read_only(path: Path, inside: str) -> dict[str, Any]:
    """A bind mount; one of a file that is not there would become a folder."""
    if not path.exists():
        raise ValueError(f"{path} is to be mounted and is not there")
    return {"Type": "bind", "Source": str(path), "Target": inside, "ReadOnly": True}


class Stack:
    """The services of a compose file, running until the end of the block."""

    def __init__(
        self,
        path: Path,
        variables: Mapping[str, str],
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """``environment``: by service, what a test wants to be otherwise."""
        self._folder = path.parent
        content = read_compose(path, variables)
        self._services: dict[str, dict[str, Any]] = content["services"]
        for service, more in (environment or {}).items():
            self._services[service]["environment"] |= more
        self._secrets: dict[str, dict[str, str]] = content.get("secrets", {})
        self._volumes = {name: f"berth-{secrets.token_hex(6)}" for name in content["volumes"]}
        self._network = Network()
        self._engine = docker.from_env()
        self.containers: dict[str, DockerContainer] = {}  # resolver-1, resolver-2, gateway-1 …
        self._replaced: dict[str, list[DockerContainer]] = {}

    # Life

    def __enter__(self) -> Self:
        self._network.create()
        try:
            for name in self._in_order():
                for number in range(1, self._replicas(name) + 1):
                    self.start(f"{name}-{number}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gone = [each for replaced in self._replaced.values() for each in replaced]
        for container in [*reversed(self.containers.values()), *gone]:
            try:
                container.get_wrapped_container().remove(force=True, v=True)
            except (APIError, NotFound):
                pass  # it went by itself
        self._network.remove()
        for volume in self._volumes.values():
            try:
                self._engine.volumes.get(volume).remove(force=True)
            except (APIError, NotFound):
                pass  # never made, as nothing used it
        self._engine.close()

    def _in_order(self) -> list[str]:
        """Each after what it depends on."""
        order: list[str] = []
        while len(order) < len(self._services):
            ready = [
                name
                for name, service in self._services.items()
                if name not in order and set(service.get("depends_on", {})) <= set(order)
            ]
            if not ready:
                raise ValueError("services depend on each other in a circle")
            order += ready
        return order

    def _replicas(self, service: str) -> int:
        return int(self._services[service].get("deploy", {}).get("replicas", 1))

    def start(self, name: str) -> None:
        """Start one container once all that it depends on is as far as the file says."""
        service = name.rpartition("-")[0]
        for other, wanted in self._services[service].get("depends_on", {}).items():
            self._await_dependency(other, wanted["condition"])
        if name in self.containers:
            self._replaced.setdefault(name, []).append(self.containers[name])
        self.containers[name] = self._container(service).start()

    def _await_dependency(self, service: str, condition: str) -> None:
        for number in range(1, self._replicas(service) + 1):
            name = f"{service}-{number}"
            match condition:
                case "service_healthy":
                    self.wait(name, lambda state: state["Health"]["Status"] == "healthy")
                case "service_completed_successfully":
                    self.wait(
                        name,
                        lambda state: state["Status"] == "exited" and state["ExitCode"] == 0,
                    )
                case _:
                    raise ValueError(f"{service}: unknown condition {condition}")

    # One container

    def _container(self, service: str) -> DockerContainer:
        spec = self._services[service]
        container = DockerContainer(spec["image"])
        container.with_network(self._network).with_network_aliases(service)
        container.with_envs(**{k: str(v) for k, v in spec.get("environment", {}).items()})
        for port in spec.get("ports", ()):
            container.with_exposed_ports(int(port.rpartition(":")[2]))
        options: dict[str, Any] = {
            "init": spec.get("init", False),
            "read_only": spec.get("read_only", False),
            "cap_drop": spec.get("cap_drop", []),
            "security_opt": spec.get("security_opt", []),
            "tmpfs": dict.fromkeys(spec.get("tmpfs", ()), ""),
            "mounts": self._mounts(spec),
            "restart_policy": {"Name": spec.get("restart", "no")},
        }
        if "user" in spec:
            options["user"] = spec["user"]
        if "entrypoint" in spec:
            options["entrypoint"] = spec["entrypoint"]
        if spec.get("healthcheck", {}).get("disable"):
            options["healthcheck"] = {"test": ["NONE"]}
        tmpfs = options.pop("tmpfs")
        for path in tmpfs:
            container.with_tmpfs_mount(path)
        return container.with_kwargs(**options)

    def _mounts(self, spec: dict[str, Any]) -> list[dict[str, Any]]:
        mounts = []
        for secret in spec.get("secrets", ()):
            path = self._folder / self._secrets[secret["source"]]["file"]
            mounts.append(read_only(path.resolve(), f"/run/secrets/{secret['target']}"))
        for volume in spec.get("volumes", ()):
            source, target, *mode = volume.split(":")
            if source in self._volumes:
                mounts.append({"Type": "volume", "Source": self._volumes[source], "Target": target})
            elif mode == ["ro"]:
                mounts.append(read_only((self._folder / source).resolve(), target))
            else:
                raise ValueError(f"{volume}: only files that stay unchanged are mounted")
        return mounts

    # Looking at them

    def state(self, name: str) -> dict[str, Any]:
        """What the engine says of a container."""
        wrapped = self.containers[name].get_wrapped_container()
        wrapped.reload()
        found: dict[str, Any] = wrapped.attrs["State"]
        return found

    def wait(self, name: str, true: Callable[[dict[str, Any]], bool]) -> None:
        """Until a container's state is as wanted. Raises NotUp."""
        patience = Patience(name)
        while not true(state := self.state(name)):
            try:
                patience.look(state)
            except Hung as hung:
                raise NotUp(f"{hung}\n{self.tail(name)}") from None
            time.sleep(0.1)

    def ready(self, name: str) -> str:
        """What /readyz says inside a container: "" when it is ready."""
        code = (
            "import urllib.request as r, urllib.error as e\n"
            "try: print(r.urlopen('http://127.0.0.1:8080/readyz', timeout=30).read().decode())\n"
            "except e.HTTPError as error: print(error.read().decode())"
        )
        try:
            answer = self.containers[name].exec(["python3", "-c", code])
        except APIError as error:
            return f"nothing can be asked there: {error.explanation}"
        try:
            told = json.loads(answer.output.decode().strip().splitlines()[-1])
        except (ValueError, IndexError):
            return answer.output.decode()[-500:] or "no answer"
        return "" if told["ready"] else str(told)

    def wait_ready(self, *names: str) -> None:
        """Until all these services say that they are ready. Raises NotUp."""
        for name in names:
            patience = Patience(f"{name} is ready")
            while why := self.ready(name):
                try:
                    patience.look(why)
                except Hung as hung:
                    raise NotUp(f"{hung}\n{self.tail(name)}") from None
                time.sleep(0.2)

    def logs(self, name: str) -> list[str]:
        """Everything it wrote, and those that it replaced."""
        lines: list[str] = []
        for container in [*self._replaced.get(name, []), self.containers[name]]:
            for stream in container.get_logs():
                lines += stream.decode().splitlines()
        return lines

    def tail(self, name: str) -> str:
        """The end of that, for whoever reads a failure."""
        return "\n".join(self.logs(name)[-LOG_TAIL_LINES:])

    def kill(self, name: str) -> None:
        """kill -9, by the engine."""
        self.containers[name].get_wrapped_container().kill("SIGKILL")
        self.wait(name, lambda state: state["Status"] == "exited")

    def url(self) -> str:
        """Where the bus is, from outside."""
        nats = self.containers["nats-1"]
        port = int(nats.get_exposed_port(4222))
        return f"nats://{os.environ.get('BERTH_ENGINE_HOST', '127.0.0.1')}:{port}"
