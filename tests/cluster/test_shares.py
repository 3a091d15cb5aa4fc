"""Shares of GPUs under a real kubelet: `berth serve shares` as a process, with a made-up driver,
device files and MPS program. Needs what test_kubelet.py needs; or is skipped with a reason."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from berthmaster.worker import shares
from berthmaster.worker.shares.account import HEADER
from berthmaster.worker.telemetry.core.pod_resources import given
from berthmaster.worker.telemetry.kubelet import LIST, call
from tests.cluster.sharing import MILLI, Place, containers, env_of, uuid
from tests.controlplane import node as nodes
from tests.support import fake_mps
from tests.support.patience import hang_s, wait_until

pytestmark = pytest.mark.skipif(bool(nodes.why_not()), reason=nodes.why_not())

GPU_IS_LOST = 15


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
    """Start a pod with a share; what its container was made with. A kubelet that has not yet heard
    that a GPU is offered again refuses the pod for good, so that it is started again."""
    node.run_pod(name, resource, milli)

    def runs() -> bool:
        if node.pods().get(name, {}).get("status", {}).get("phase") == "Failed":
            node.stop_pod(name)
            wait_until(lambda: name not in node.pods(), f"{name} is gone")
            node.run_pod(name, resource, milli)
        return name in containers(node)

    wait_until(runs, f"{name} runs")
    spec: dict[str, Any] = containers(node)[name]
    return spec


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
