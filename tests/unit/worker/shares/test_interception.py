"""libberthcuda against a driver that counts memory and has none: what it grants, shows and slows.

The stand-in and the programs are compiled here; without a C compiler these tests are skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from berthmaster.worker.shares import account
from berthmaster.worker.shares.account import Account, Reading, make, rate_of, targets
from tests.support.patience import hang_s, wait_until

COMPILER = shutil.which("cc")
HERE = Path(__file__).with_name("cuda")
NVML = Path(__file__).parents[3] / "pipeline/telemetry/fake_nvml.c"
LIBRARY = Path(account.__file__).with_name("_berthcuda.c")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build libberthcuda")


def cc(*arguments: str | Path) -> None:
    argv = [str(COMPILER), "-O2", *map(str, arguments)]
    subprocess.run(argv, check=True, timeout=hang_s())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, the stand-ins, and the programs that use them."""
    folder = tmp_path_factory.mktemp("cuda")
    shared = ("-shared", "-fPIC")
    cc(
        *shared,
        "-fvisibility=hidden",
        "-o",
        folder / "libberthcuda.so",
        LIBRARY,
        "-ldl",
        "-lpthread",
    )
    driver = folder / "libcuda.so.1"
    cc(*shared, "-Wl,-soname,libcuda.so.1", "-o", driver, HERE / "fake_cuda.c", "-ldl")
    cc(*shared, "-o", folder / "libnvidia-ml.so.1", NVML)
    for name in ("fuzz", "probe"):
        cc("-o", folder / name, HERE / f"{name}.c", driver, "-ldl")
    return folder


ALLOCATES = """
import ctypes, sys
pointer = ctypes.c_ulonglong()
ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(10))
print("allocated", flush=True)
sys.stdin.read()
"""


class Container:
    """What the processes of one container have."""

    def __init__(self, built: Path, folder: Path, limit: int) -> None:
        self.built = built
        self.share = folder / "share"
        make(self.share, limit, 500)
        self.env = os.environ | {
            "LD_LIBRARY_PATH": str(built),
            "LD_PRELOAD": str(built / "libberthcuda.so"),
            "BERTHCUDA_SHARE": str(self.share),
            "FAKE_CUDA_TRUTH": str(folder / "truth"),
            "FAKE_CUDA_LIMIT": str(limit),
        }

    def start(self, *argv: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.built / argv[0], *argv[1:]],
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *argv: str) -> list[str]:
        """The words that it prints."""
        process = self.start(*argv)
        output, errors = process.communicate(timeout=hang_s())
        assert process.returncode == 0, (output, errors)
        return output.split()


@needs_compiler
@pytest.mark.parametrize("seed", [1, 2])
def test_accounting_is_exact_over_100000_orders_of_calls_and_kills(
    built: Path, tmp_path: Path, seed: int
) -> None:
    told = " ".join(Container(built, tmp_path, 100_000).run("fuzz", str(seed), "100000"))
    sequences, kills, refused, _ = (int(part.split()[0]) for part in told.split(", ")[:4])
    assert sequences >= 100_000
    assert kills > 0
    assert refused > 0
    assert told.endswith(", 0 bytes left over")


@needs_compiler
def test_a_program_sees_its_share_as_the_whole_gpu(built: Path, tmp_path: Path) -> None:
    one = Container(built, tmp_path, 1000)
    # 600 bytes are granted, a child's 600 are refused, and what is shown is what is left.
    assert one.run("probe", "memory", "600") == ["0", "2", "400", "1000", "1000"]
    # The first process has ended, by which its memory is free again.
    assert one.run("probe", "memory", "1000")[:3] == ["0", "2", "0"]
    assert one.run("probe", "nvml") == ["1000", "1000", "0"]
    one.share.write_bytes(b"nonsense")
    assert one.run("probe", "memory", "1")[0] == "2"
    del one.env["BERTHCUDA_SHARE"], one.env["FAKE_CUDA_LIMIT"]
    assert one.run("probe", "memory", "600")[:2] == ["0", "0"]


@needs_compiler
def test_functions_are_found_in_the_version_that_was_asked_for(built: Path, tmp_path: Path) -> None:
    one = Container(built, tmp_path, 1000)
    assert one.run("probe", "versions") == ["none", "1", "1", "1", "driver"]
    assert one.run("probe", "next") == ["1"]


@needs_compiler
def test_launches_spend_tokens_at_the_rate_of_their_share(built: Path, tmp_path: Path) -> None:
    one = Container(built, tmp_path, 1000)
    process = one.start("probe", "launch", "3")
    held = Account(one.share)
    wait_until(lambda: held.read({}, 1.0).spent > 0, "launches are counted")
    held.rate = 20_000  # 200 launches a second, and 20 more from a full bucket
    process.communicate(timeout=hang_s())
    held.read({}, 1.0)
    slow = one.start("probe", "launch", "3")
    output, _ = slow.communicate(timeout=hang_s())
    reading = held.read({}, 1.0)
    assert reading.waited
    assert reading.spent == 100 * int(output)
    # Never faster than the rate, whatever the machine does; slower where it is busy.
    assert int(output) <= 200 * 3 + 20 + 210  # the last turn of ten may wait for a whole second
    held.close()


@needs_compiler
def test_processes_that_hold_memory_are_known_by_their_numbers(built: Path, tmp_path: Path) -> None:
    one = Container(built, tmp_path, 1000)
    held = Account(one.share)
    assert list(held.processes()) == []
    process = subprocess.Popen(
        [sys.executable, "-c", ALLOCATES],
        env=one.env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "allocated\n"
    assert list(held.processes()) == [process.pid]
    assert held.read({process.pid: 40.0, 1: 60.0}, 1.0) == Reading(500, 400, 0, False)
    process.kill()
    process.communicate()
    assert list(held.processes()) == []
    held.close()


def test_targets_lend_what_neighbours_leave_to_those_that_wait() -> None:
    busy, idle, calm = (
        Reading(250, 250, 9, True),
        Reading(500, 0, 0, False),
        Reading(250, 100, 5, False),
    )
    assert targets([busy, idle, calm], 0) == [250, 500, 250]
    assert targets([busy, idle, calm], 300) == [550, 500, 250]
    assert targets([busy, idle, calm], 1000) == [900, 500, 250]  # of 1000, 100 are used by calm
    # Its owner wants it again: everybody is back at the granted share.
    assert targets([busy, idle._replace(waited=True), calm._replace(waited=True)], 1000) == [
        250,
        500,
        250,
    ]
    two = [Reading(100, 100, 1, True), Reading(300, 300, 1, True)]
    assert targets(two, 1000) == [250, 750]
    assert targets([], 100) == []


def test_rate_follows_what_was_measured() -> None:
    reading = Reading(250, 500, 8000, True)
    assert rate_of(reading, 250, 0) == 4000
    assert rate_of(reading, 1000, 77) == 0
    assert rate_of(reading._replace(used_milli=0), 250, 77) == 77
    assert rate_of(reading._replace(spent=1), 250, 0) == 1
