"""A GPU that nobody uses; where there is none the tier is skipped, with why."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.source import SourceAbsent
from berthmaster.worker.telemetry.nvml import open_nvml
from tests.gpu.cuda import Process

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
MPS_CONTROL = shutil.which("nvidia-cuda-mps-control", path=f"{os.defpath}:/usr/local/nvidia/bin")


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    try:
        reader, _ = open_nvml(PROC)
    except SourceAbsent as why:
        pytest.skip(str(why))
    (node,) = reader.read(0.0)
    reader.close()
    if not node.gpus:
        pytest.skip("the NVIDIA driver lists no GPU")
    if node.gpus[0].mig or node.gpus[0].processes:
        pytest.skip("the first GPU is cut into slices, or somebody uses it")


@pytest.fixture
def reader() -> Iterator[NvmlReader]:
    reader, _ = open_nvml(PROC)
    yield reader
    reader.close()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Begin a process on the GPU, with this in its environment."""
    with ExitStack() as running:

        def begin(**env: str) -> Process:
            return running.enter_context(Process({**os.environ, **env}))

        yield begin


@pytest.fixture
def into_pod() -> Iterator[Callable[[Process], str]]:
    """Move a process into the control group of a pod, as a kubelet makes them; the pod's uid."""
    made: list[Path] = []
    moved: list[Process] = []

    def move(process: Process) -> str:
        uid = str(uuid4())
        group = CGROUPS / "kubepods" / "burstable" / f"pod{uid}" / f"{UUID(uid).hex * 2}"
        try:
            group.mkdir(parents=True)
            (group / "cgroup.procs").write_text(str(process.pid))
        except OSError as why:
            pytest.skip(f"no control groups of our own here: {why}")
        made.append(group)
        moved.append(process)
        return uid

    yield move
    for process in moved:
        process.__exit__()
    for group in made:
        group.rmdir()
        group.parent.rmdir()
    for left in (CGROUPS / "kubepods" / "burstable", CGROUPS / "kubepods"):
        if made and left.is_dir() and not any(part.is_dir() for part in left.iterdir()):
            left.rmdir()


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A daemon of MPS of our own; what its clients' environment must have."""
    if MPS_CONTROL is None:
        pytest.skip("no nvidia-cuda-mps-control")
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    both = {**os.environ, **env}
    subprocess.run([MPS_CONTROL, "-d"], env=both, check=True, timeout=20)
    time.sleep(1.0)  # it answers nothing before
    yield env
    subprocess.run([MPS_CONTROL], input="quit -t 5\n", text=True, env=both, check=False, timeout=60)
