"""`berth serve shares` as a process on a real node: its driver, device files and MPS program are
made up."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from stat import S_IFCHR
from typing import Any, Final, Self

from berthmaster.worker.shares.core.wire import owned
from berthmaster.worker.telemetry.kubelet import KubeletFault, call
from tests.controlplane import node as nodes
from tests.support import fake_mps
from tests.support.patience import hang_s, wait_until

MILLI: Final = "berthmaster.io/gpu-milli"
NVML: Final = Path(__file__).parents[1] / "pipeline/telemetry/fake_nvml.c"
ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


def uuid(number: int) -> str:
    """Name a GPU as fake_nvml.c does."""
    return f"GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e{number:02d}"


class Place:
    """What the plugin finds on its node."""

    def __init__(self, folder: Path, node: nodes.Node) -> None:
        self.node = node
        self.folder = folder
        self.programs = folder / "bin"
        self.devices = folder / "dev"
        self.faults = folder / "faults"
        kubelet = folder / "kubelet"
        for each in (self.programs, self.devices, kubelet):
            each.mkdir()
        (kubelet / "device-plugins").symlink_to(nodes.PLUGINS)
        (kubelet / "pod-resources").symlink_to(node.pod_resources.parent)
        for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            os.mknod(self.devices / name, S_IFCHR | 0o666, os.makedev(1, 3))
        build = [
            "cc",
            "-O2",
            "-shared",
            "-fPIC",
            "-o",
            str(folder / "libnvidia-ml.so.1"),
            str(NVML),
        ]
        subprocess.run(build, check=True, timeout=hang_s())
        fake_mps.install(self.programs)

    def plugin(self, *flags: str, gpus: int = 1, state: str = "state") -> "Plugin":
        return Plugin(self, *flags, gpus=gpus, state=state)


class Plugin:
    """One `berth serve shares`; its log is read as it comes."""

    def __init__(self, place: Place, *flags: str, gpus: int, state: str) -> None:
        self.node = place.node
        self.state = place.folder / state
        env = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
        env |= {
            "LD_LIBRARY_PATH": str(place.folder),
            "FAKE_NVML_GPUS": str(gpus),
            "FAKE_NVML_FAULTS": str(place.faults),
            "PATH": f"{place.programs}:{env['PATH']}",
        }
        argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "shares"]
        argv += ["--kubelet-dir", str(place.folder / "kubelet")]
        argv += ["--devices-dir", str(place.devices), "--state-dir", str(self.state), *flags]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == name]

    def until(self, name: str, times: int = 1) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None or self.events(name), self.lines
            return self.events(name)[times - 1 :]

        return wait_until(found, f"{name!r}, time {times}")[0]

    def parts(self) -> dict[str, Any]:
        port = self.until("starting")["http_port"]
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/readyz", timeout=hang_s()
            ) as page:
                found: dict[str, Any] = json.load(page)
        except urllib.error.HTTPError as error:
            with error:
                found = json.load(error)
        parts: dict[str, Any] = found["parts"]
        return parts

    def until_part(self, name: str, ok: bool) -> str:
        """Wait until a part of its readiness is so; why."""
        wait_until(lambda: self.parts().get(name, {}).get("ok") is ok, f"{name} is {ok}")
        return str(self.parts()[name]["why"])

    def until_offered(self) -> None:
        """Wait until the kubelet has healthy devices of ours."""
        self.until("registered")
        self.until_part("gpus", True)

        def lists_ours() -> bool:
            try:
                answer = call(self.node.pod_resources, ALLOCATABLE)
            except KubeletFault:
                return False  # a kubelet that has just started
            return any(one.resource.startswith(MILLI) for one in owned(answer))

        wait_until(lists_ours, "the kubelet lists healthy devices")

    def refusal(self) -> str:
        """Why it did not start."""
        assert self.process.wait(hang_s()) == 3, self.lines
        self._reader.join(hang_s())
        return str(self.events("cannot_start")[0]["why"])

    def pid_of_daemon(self, number: int = 0) -> int:
        pid = self.state / "mps" / uuid(number) / "nvidia-cuda-mps-control.pid"
        return int(pid.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(hang_s())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(hang_s())
        finally:
            self.process.kill()
            self._reader.join(hang_s())
            assert self.process.stderr is not None
            self.process.stderr.close()


def containers(node: nodes.Node) -> dict[str, Any]:
    """The containers of pods that run, by the pod."""
    found = {}
    running = [
        line.split()[0] for line in node.ctr("tasks", "ls").splitlines() if "RUNNING" in line
    ]
    for name in running:
        try:
            info = json.loads(node.ctr("containers", "info", name))
        except subprocess.CalledProcessError:
            continue  # removed since
        if info["Labels"].get("io.kubernetes.container.name") == "main":
            pod = info["Labels"]["io.kubernetes.pod.name"].removesuffix(f"-{node.name}")
            found[pod] = info["Spec"]
    return found


def env_of(spec: dict[str, Any]) -> dict[str, str]:
    pairs = (each.split("=", 1) for each in spec["process"]["env"])
    return {name: value for name, value in pairs if name.startswith(("CUDA_", "NVIDIA_"))}
