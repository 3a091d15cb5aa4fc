"""Shares of GPUs under a real kubelet: `berth serve shares` as a process, with a made-up driver,
device files and MPS program. Needs what test_kubelet.py needs; or is skipped with a reason."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from stat import S_IFCHR
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest

from berthmaster import shares
from berthmaster.shares.account import HEADER
from berthmaster.shares.wire import owned
from berthmaster.telemetry.kubelet import LIST, KubeletFault, call
from berthmaster.telemetry.pod_resources import given
from tests.controlplane import node as nodes
from tests.support import fake_mps
from tests.support.patience import hang_s, wait_until

pytestmark = pytest.mark.skipif(bool(nodes.why_not()), reason=nodes.why_not())

MILLI = "berthmaster.io/gpu-milli"
NVML = Path(__file__).parents[1] / "pipeline/telemetry/fake_nvml.c"
GPU_IS_LOST = 15
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"


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


@pytest.fixture(scope="module")
def node() -> Iterator[nodes.Node]:
    with (
        # The paths of its sockets may have 107 characters, whatever tests' folders are called.
        TemporaryDirectory(prefix="node-", ignore_cleanup_errors=True) as folder,
        nodes.running(Path(folder), "gpu-node") as running,
    ):
        yield running


@pytest.fixture
def place(node: nodes.Node) -> Iterator[Place]:
    """A fresh one a test; pods are gone after it."""
    with TemporaryDirectory(prefix="shares-") as folder:
        yield Place(Path(folder), node)
        for file in (node.folder / "pods").iterdir():
            file.unlink()
        wait_until(lambda: not node.pids(), "the pods have ended")
        wait_until(lambda: not node.pods(), "the kubelet has forgotten the pods")


def run(node: nodes.Node, name: str, milli: int, resource: str = MILLI) -> dict[str, Any]:
    """Start a pod with a share; what its container was made with."""
    node.run_pod(name, resource, milli)
    wait_until(lambda: name in containers(node), f"{name} runs: {node.pods().get(name)}")
    spec: dict[str, Any] = containers(node)[name]
    return spec


def containers(node: nodes.Node) -> dict[str, Any]:
    """The containers of pods that run, by the pod."""
    found = {}
    running = [
        line.split()[0] for line in node.ctr("tasks", "ls").splitlines() if "RUNNING" in line
    ]
    for name in running:
        info = json.loads(node.ctr("containers", "info", name))
        if info["Labels"].get("io.kubernetes.container.name") == "main":
            pod = info["Labels"]["io.kubernetes.pod.name"].removesuffix(f"-{node.name}")
            found[pod] = info["Spec"]
    return found


def env_of(spec: dict[str, Any]) -> dict[str, str]:
    pairs = (each.split("=", 1) for each in spec["process"]["env"])
    return {name: value for name, value in pairs if name.startswith(("CUDA_", "NVIDIA_"))}


def refused(node: nodes.Node, name: str, milli: int) -> str:
    """Start a pod that the kubelet does not take; why."""
    node.run_pod(name, MILLI, milli)

    def status() -> Any:
        found = node.pods().get(name, {}).get("status", {})
        return found if found.get("phase") == "Failed" else None

    failed = wait_until(status, f"the kubelet refuses {name}: {node.pods().get(name)}")
    return f"{failed['reason']}: {failed.get('message', '')}"


def test_a_pod_gets_its_share_a_second_the_rest_and_both_sides_may_be_killed(
    node: nodes.Node, place: Place
) -> None:
    with place.plugin() as plugin:
        plugin.until_offered()
        first = run(node, "first", 600)
        assert env_of(first) == {
            "NVIDIA_VISIBLE_DEVICES": uuid(0),
            "CUDA_MPS_PIPE_DIRECTORY": "/run/berthmaster/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=49152M",
        }
        mounts = {each["destination"]: each["source"] for each in first["mounts"]}
        assert mounts["/run/berthmaster/mps"] == f"{plugin.state}/mps/{uuid(0)}"
        assert mounts["/dev/shm"] == f"{plugin.state}/shm"
        files = {each["path"] for each in first["linux"]["devices"]}
        assert files == {
            f"{place.devices}/{name}" for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
        }
        second = run(node, "second", 400)
        assert env_of(second)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=32768M"
        assert MILLI in refused(node, "third", 1)

        # Telemetry reads who has it, as parts of one GPU.
        holders = given(call(node.pod_resources, LIST))
        parts = [each.pod for each in holders if each.resource == MILLI and each.replica]
        assert {each.device for each in holders} == {uuid(0)}
        assert (parts.count("first-gpu-node"), parts.count("second-gpu-node")) == (600, 400)

        plugin.kill()
    assert set(containers(node)) == {"first", "second"}
    with place.plugin() as plugin:
        plugin.until_offered()
        assert MILLI in refused(node, "fourth", 1)
        node.stop_pod("first")
        wait_until(lambda: "first" not in node.pods(), "the first pod is gone")
        assert env_of(run(node, "fifth", 600))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"

        node.kill_kubelet()
        node.start_kubelet()
        plugin.until("registered", 2)
        plugin.until_offered()
        wait_until(lambda: set(containers(node)) == {"second", "fifth"}, "both pods run")
        assert MILLI in refused(node, "sixth", 1)
        node.stop_pod("second")
        wait_until(lambda: "second" not in node.pods(), "the second pod is gone")
        assert env_of(run(node, "seventh", 400))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert plugin.process.returncode == 0


def test_shares_are_of_one_gpu_and_whole_gpus_come_without_mps(
    node: nodes.Node, place: Place
) -> None:
    with place.plugin(gpus=2) as plugin:
        plugin.until_offered()
        assert env_of(run(node, "a", 600))["NVIDIA_VISIBLE_DEVICES"] == uuid(0)
        assert env_of(run(node, "b", 600))["NVIDIA_VISIBLE_DEVICES"] == uuid(1)
        assert env_of(run(node, "c", 300))["NVIDIA_VISIBLE_DEVICES"] == uuid(0)
        why = refused(node, "d", 450)
        assert "450 thousandths cannot be had in one piece" in why
        for name in ("a", "b", "c", "d"):
            node.stop_pod(name)
        wait_until(lambda: not node.pods(), "all pods are gone")
        assert env_of(run(node, "e", 2000)) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
        assert plugin.events("share refused") != []


def test_a_gpu_whose_mps_daemon_or_driver_fails_takes_nothing_new(
    node: nodes.Node, place: Place
) -> None:
    with place.plugin() as plugin:
        plugin.until_offered()
        os.kill(plugin.pid_of_daemon(), signal.SIGKILL)
        plugin.until("mps daemon ended")
        plugin.until("mps daemon ready", 2)
        plugin.until_part("gpus", True)
        run(node, "after", 100)

        # A daemon that does not come back keeps pods away.
        (place.programs / "nvidia-cuda-mps-control").unlink()
        os.kill(plugin.pid_of_daemon(), signal.SIGKILL)
        assert "its MPS daemon has ended" in plugin.until_part("gpus", False)
        assert MILLI in refused(node, "without", 100)
        fake_mps.install(place.programs)
        plugin.until_part("gpus", True)
        run(node, "again", 100)

        place.faults.write_text(f"0 {GPU_IS_LOST}\n")
        assert "GPU is lost" in plugin.until_part("gpus", False)
        place.faults.write_text("")
        plugin.until_part("gpus", True)


def test_without_mps_shares_take_turns_under_another_resource(
    node: nodes.Node, place: Place
) -> None:
    (place.programs / "nvidia-cuda-mps-control").unlink()
    if shutil.which("nvidia-cuda-mps-control") is not None:
        pytest.skip("this machine has MPS")
    with place.plugin("--way", "mps") as plugin:
        assert "no program nvidia-cuda-mps-control here" in plugin.refusal()
    with place.plugin() as plugin:
        assert "nothing holds" in plugin.until("shares are not held")["why"]
        assert plugin.until("registered")["resource"] == f"{MILLI}.shared"
        plugin.until_offered()
        spec = run(node, "turns", 500, f"{MILLI}.shared")
        assert env_of(spec) == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}


def test_intercepted_pods_get_the_library_and_an_account_of_their_own(
    node: nodes.Node, place: Place
) -> None:
    if not list(Path(shares.__file__).parent.glob("_berthcuda*.so")):
        pytest.skip("libberthcuda is not built here: no C compiler when berthmaster was installed")
    with place.plugin("--way", "intercept") as plugin:
        plugin.until_offered()
        for name, milli in (("a", 250), ("b", 750)):
            spec = run(node, name, milli)
            assert env_of(spec) == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}
            mounts = {each["destination"]: each["source"] for each in spec["mounts"]}
            assert mounts["/etc/ld.so.preload"] == f"{plugin.state}/cuda/ld.so.preload"
            library = Path(mounts["/run/berthmaster/libberthcuda.so"])
            assert library.read_bytes()[:4] == b"\x7fELF"
            account = Path(mounts["/run/berthmaster/share"])
            _, limit, *_, noted = HEADER.unpack_from(account.read_bytes())
            assert (limit, noted) == (81_920 * milli // 1000 * 2**20, milli)
        plugin.kill()
    with place.plugin("--way", "intercept") as plugin:
        plugin.until_offered()
        assert len(list((plugin.state / "cuda" / "accounts").iterdir())) == 2


def test_gpus_have_one_owner(node: nodes.Node, place: Place) -> None:
    """The last one: the kubelet goes on listing what the other plugin has offered."""
    with place.plugin() as plugin:
        plugin.until_offered()
        with place.plugin() as second:
            assert "another berth serve shares runs on this node" in second.refusal()
        with place.plugin(state="other") as second:
            assert "another process listens there" in second.refusal()

        with nodes.device_plugin("nvidia.com/gpu", [uuid(0)]):
            why = plugin.until_part("gpus", False)
            assert why.endswith("another device plugin offers this node's GPUs as nvidia.com/gpu")
            assert MILLI in refused(node, "beside", 100)
            plugin.kill()
            with place.plugin() as late:
                assert "offers this node's GPUs as nvidia.com/gpu" in late.refusal()

    pipes = plugin.state / "mps" / uuid(0)
    env = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    for left in pipes.iterdir():
        left.unlink()
    foreign = subprocess.Popen([place.programs / "nvidia-cuda-mps-control", "-f"], env=env)
    try:
        wait_until((pipes / "control").exists, "the other daemon listens")
        with place.plugin() as beside:
            assert f"another MPS daemon answers in {pipes}" in beside.refusal()
    finally:
        foreign.kill()
        foreign.wait(hang_s())
