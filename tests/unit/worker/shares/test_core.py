"""Which GPU gives which share, and what a container gets of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.worker.shares.core.shares import (
    WHOLE,
    Gpu,
    Grant,
    Mount,
    Places,
    Refused,
    Share,
    device_ids,
    grant_of,
    preferred,
    share_of,
)

A, B, C = (Gpu(f"GPU-{letter * 8}", number, 81_559) for number, letter in enumerate("abc"))
GPUS = {gpu.uuid: gpu for gpu in (A, B, C)}
PLACES = Places(
    "/dev",
    ("nvidiactl", "nvidia-uvm"),
    "/run/mps",
    "/run/shm",
    "/run/accounts",
    "/run/lib.so",
    "/run/list",
)


def free(gpu: Gpu, count: int) -> list[str]:
    """The last devices of a GPU, as others have the first."""
    return list(device_ids(gpu))[WHOLE - count :]


def test_preferred_takes_the_fullest_gpu_with_room() -> None:
    available = [*free(A, 1000), *free(B, 400), *free(C, 200)]
    assert preferred(available, (), 250) == free(B, 400)[:250]
    assert preferred(available, (), 200) == free(C, 200)
    assert preferred(available, (), 401) == free(A, 1000)[:401]


def test_preferred_takes_wholly_free_gpus_from_1000_on() -> None:
    available = [*free(A, 999), *free(B, 1000), *free(C, 1000)]
    assert preferred(available, (), 1000) == free(B, 1000)
    assert preferred(available, (), 2000) == [*free(B, 1000), *free(C, 1000)]
    assert preferred(available, (), 3000) == []
    assert preferred(available, (), 1500) == []


def test_preferred_keeps_what_the_container_has() -> None:
    available = [*free(A, 500), *free(B, 300)]
    taken = free(A, 500)[-2:]
    chosen = preferred(available, taken, 250)
    assert len(chosen) == 250
    assert chosen[:2] == taken
    assert share_of(chosen, GPUS) == Share((A,), 250, f"{A.uuid}::500")
    assert preferred([*free(A, 10), *free(B, 300)], free(A, 10)[:1], 250) == []


@given(
    st.lists(st.integers(0, WHOLE), min_size=3, max_size=3),
    st.integers(1, 3 * WHOLE),
)
def test_preferred_is_one_share_wherever_there_is_one(counts: list[int], size: int) -> None:
    available = [
        device for gpu, n in zip(GPUS.values(), counts, strict=True) for device in free(gpu, n)
    ]
    chosen = preferred(available, (), size)
    fits = (
        max(counts) >= size
        if size < WHOLE
        else size % WHOLE == 0 and counts.count(WHOLE) >= size // WHOLE
    )
    assert bool(chosen) == fits
    if chosen:
        assert len(set(chosen)) == size
        assert set(chosen) <= set(available)
        share = share_of(chosen, GPUS)
        assert share.milli * len(share.gpus) == size


def test_share_of_refuses_pieces_of_several_gpus() -> None:
    with pytest.raises(Refused, match=r"600 thousandths cannot be had in one piece.*200 of GPU-a"):
        share_of([*free(A, 200), *free(B, 400)], GPUS)
    with pytest.raises(Refused, match="cannot be had in one piece"):
        share_of([*free(A, 1000), *free(B, 500)], GPUS)
    with pytest.raises(Refused, match="no GPU of this node"):
        share_of(["GPU-other::1"], GPUS)
    with pytest.raises(Refused, match="free are nothing"):
        share_of([], GPUS)


def test_grant_by_mps_holds_compute_and_memory_of_one_daemon() -> None:
    assert grant_of(Share((B,), 255), "mps", PLACES) == Grant(
        env={
            "NVIDIA_VISIBLE_DEVICES": B.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": "/run/berthmaster/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "26",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20797M",
        },
        mounts=(
            Mount("/run/berthmaster/mps", f"/run/mps/{B.uuid}"),
            Mount("/dev/shm", "/run/shm"),
        ),
        files=("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"),
    )


def test_grant_by_interception_is_the_library_and_the_account() -> None:
    grant = grant_of(Share((B,), 255, f"{B.uuid}::0"), "intercept", PLACES)
    assert grant.env == {"NVIDIA_VISIBLE_DEVICES": B.uuid}
    assert grant.mounts == (
        Mount("/run/berthmaster/libberthcuda.so", "/run/lib.so", read_only=True),
        Mount("/etc/ld.so.preload", "/run/list", read_only=True),
        Mount("/run/berthmaster/share", f"/run/accounts/{B.uuid}::0"),
    )


def test_grant_of_whole_gpus_and_of_turns_is_the_devices_only() -> None:
    whole = grant_of(Share((A, C), WHOLE), "mps", PLACES)
    assert whole == Grant(
        {"NVIDIA_VISIBLE_DEVICES": f"{A.uuid},{C.uuid}"},
        (),
        ("/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"),
    )
    assert grant_of(Share((A,), 1), "time-slicing", PLACES).env == {
        "NVIDIA_VISIBLE_DEVICES": A.uuid
    }
