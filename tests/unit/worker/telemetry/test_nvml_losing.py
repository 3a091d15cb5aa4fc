"""GPUs that fall off the bus, drivers that go, XIDs; and how all of it comes back."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.messages.families import TELEMETRY, encode
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.worker.telemetry.core.nvml_driver import KINDS, FaultKind, NvmlFault
from berthmaster.worker.telemetry.core.nvml_reader import NOT_LISTED, NvmlReader
from berthmaster.worker.telemetry.core.source import SourceAbsent
from tests.unit.worker.telemetry.fake_driver import (
    ALL,
    ANY,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    FakeDriver,
    FakeGpu,
)
from tests.unit.worker.telemetry.fake_proc import pods_of
from tests.unit.worker.telemetry.test_nvml_reading import opened, read

LOST = "GPU is lost (NVML error 15)"
UNLOADED = "the NVIDIA driver does not answer: Driver Not Loaded (NVML error 9)"


def gpus(*names: str) -> FakeDriver:
    return FakeDriver(*(FakeGpu(f"GPU-{name}") for name in names))


def outline(reader: NvmlReader, now_s: float) -> list[tuple[int, str, str]]:
    """Index, uuid and health of each GPU, with the reason for the worse."""
    return [(one.index, one.uuid, one.health_reason or one.health) for one in read(reader, now_s)]


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_go_on() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    read(reader, 0.0)
    driver.faults[1, ANY] = GPU_IS_LOST
    assert read(reader, 1.0)[1] == GpuReading(
        index=1, uuid="GPU-b", model="NVIDIA A100-SXM4-40GB", health="lost", health_reason=LOST
    )
    assert read(reader, 1.5)[0].health == "ok"


def test_a_lost_gpu_is_tried_with_growing_pauses_and_comes_back_under_its_old_handle() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    driver.faults[1, ANY] = GPU_IS_LOST
    lives = []
    for second in range(70):
        read(reader, float(second))
        lives.append(driver.life)
    # Opened anew 1, 2, 4, ... seconds after the last try.
    tries = [second for second in range(1, 70) if lives[second] > lives[second - 1]]
    assert tries == [1, 3, 7, 15, 31, 63]

    del driver.faults[1, ANY]
    assert outline(reader, 100.0)[1] == (1, "GPU-b", LOST)  # not before the pause is over
    assert outline(reader, 127.0) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]


def test_a_gpu_that_answers_again_is_taken_back_without_disturbing_the_others() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    driver.faults[1, ANY] = GPU_IS_LOST
    read(reader, 0.0)
    del driver.faults[1, ANY]
    assert outline(reader, 1.0) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]
    assert driver.life == 1


def test_a_gpu_that_was_reset_is_found_when_the_driver_is_opened_anew() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    read(reader, 0.0)
    # It answers only to those who open the driver after its reset.
    driver.faults[1, ANY] = RESET_REQUIRED
    assert outline(reader, 0.5)[1] == (1, "GPU-b", "GPU requires restart (NVML error 16)")
    original_start = driver.start

    def start() -> None:
        original_start()
        driver.faults.clear()

    driver.start = start  # type: ignore[method-assign] # the person with the reset button
    assert outline(reader, 1.5) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]
    assert driver.life == 2


def test_a_gpu_that_is_listed_no_more_keeps_its_index_and_so_do_the_others() -> None:
    driver = gpus("a", "b", "c")
    reader = opened(driver)
    driver.faults[1, ANY] = GPU_IS_LOST
    read(reader, 0.0)
    # The driver forgets the lost one and counts the third as its second.
    del driver.gpus[1]
    driver.faults = {(1, "rates"): GPU_IS_LOST}  # the third falls too, for a moment
    read(reader, 1.0)
    driver.faults.clear()
    assert outline(reader, 30.0) == [
        (0, "GPU-a", "ok"),
        (1, "GPU-b", NOT_LISTED),
        (2, "GPU-c", "ok"),
    ]


def test_new_gpu_keeps_other_indices() -> None:
    driver = gpus("a", "b", "c")
    reader = opened(driver)
    driver.faults[1, ANY] = GPU_IS_LOST
    read(reader, 0.0)
    driver.gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-c"), FakeGpu("GPU-new")]
    driver.faults = {(0, "rates"): DRIVER_NOT_LOADED}
    read(reader, 0.5)
    driver.faults.clear()
    assert outline(reader, 1.5) == [
        (0, "GPU-a", "ok"),
        (1, "GPU-b", NOT_LISTED),
        (2, "GPU-c", "ok"),
        (3, "GPU-new", "ok"),
    ]


def test_after_a_quiet_time_a_loss_is_a_new_one_and_tried_again_at_once() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.faults[0, ANY] = GPU_IS_LOST
    for second in range(20):
        read(reader, float(second))
    driver.faults.clear()
    for second in range(20, 200):
        read(reader, float(second))
    driver.faults[0, ANY] = GPU_IS_LOST
    read(reader, 200.0)
    driver.faults.clear()
    assert read(reader, 201.0)[0].health == "ok"


def test_a_gpu_that_is_lost_again_soon_is_tried_after_a_longer_pause() -> None:
    driver = gpus("a")
    reader = opened(driver)
    healths = []
    for second in range(12):
        driver.faults = {} if second in (1, 2, 4, 5, 6, 7) else {(0, ANY): GPU_IS_LOST}
        healths.append(read(reader, float(second))[0].health)
    # Lost at 0, found at 1, lost again at 3: now only after two seconds.
    assert healths == ["lost", "ok", "ok", "lost", "lost", "ok", "ok", "ok", *["lost"] * 4]


def test_a_gpu_in_the_place_of_one_that_is_gone_replaces_it() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    driver.faults[1, ANY] = GPU_IS_LOST
    read(reader, 0.0)
    driver.gpus[1] = FakeGpu("GPU-new", name="NVIDIA H100")
    driver.faults = {(0, "rates"): DRIVER_NOT_LOADED}  # it was unloaded for the exchange
    read(reader, 0.5)
    driver.faults.clear()
    assert outline(reader, 1.5) == [(0, "GPU-a", "ok"), (1, "GPU-new", "ok")]
    assert read(reader, 2.0)[1].model == "NVIDIA H100"


def test_a_gpu_that_is_lost_from_the_start_is_reported_without_a_name_until_it_has_one() -> None:
    driver = gpus("a", "b")
    driver.faults[1, ANY] = GPU_IS_LOST
    reader = opened(driver)
    assert outline(reader, 0.0) == [(0, "GPU-a", "ok"), (1, "", LOST)]
    driver.faults.clear()
    assert outline(reader, 1.0) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]


def test_a_gpu_without_a_model_name_is_still_a_gpu() -> None:
    driver = gpus("a")
    driver.faults[0, "name"] = NOT_SUPPORTED
    assert read(opened(driver), 0.0)[0].model == ""


def test_a_gpu_that_answers_nothing_but_trouble_is_lost() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.faults[0, ANY] = UNKNOWN
    why = "the driver answers nothing about it: Unknown Error (NVML error 999)"
    assert outline(reader, 1.0) == [(0, "GPU-a", why)]


def test_when_the_driver_goes_all_are_lost_and_all_come_back_with_it() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    assert outline(reader, 0.0) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]

    # It goes in the middle of a read: the first GPU has answered and is gone all the same.
    driver.faults = {(1, ANY): DRIVER_NOT_LOADED, (None, "start"): DRIVER_NOT_LOADED}
    assert outline(reader, 1.0) == [(0, "GPU-a", UNLOADED), (1, "GPU-b", UNLOADED)]
    assert outline(reader, 10.0) == [(0, "GPU-a", UNLOADED), (1, "GPU-b", UNLOADED)]

    driver.faults.clear()
    assert outline(reader, 100.0) == [(0, "GPU-a", "ok"), (1, "GPU-b", "ok")]


def test_a_driver_that_somebody_else_closed_is_opened_again() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.open = False
    assert "Uninitialized" in outline(reader, 0.0)[0][2]
    assert outline(reader, 1.0) == [(0, "GPU-a", "ok")]


def test_a_driver_that_was_replaced_under_us_says_what_to_do() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.faults = {(ALL, ANY): MISMATCH, (None, "start"): MISMATCH}
    assert outline(reader, 0.0)[0][2].endswith("it was replaced while in use, restart this agent")


@pytest.mark.parametrize("call", ["start", "count"])
@pytest.mark.parametrize("code", [12, DRIVER_NOT_LOADED, NO_PERMISSION, MISMATCH, UNKNOWN])
def test_a_machine_without_a_usable_driver_is_told_apart_at_the_start(call: str, code: int) -> None:
    driver = gpus("a")
    driver.faults[None, call] = code
    with pytest.raises(SourceAbsent, match=rf"^no usable NVIDIA driver: .*NVML error {code}"):
        NvmlReader(driver, pods_of({})).open(now_s=0.0)


def test_a_driver_without_gpus_is_a_node_without_gpus() -> None:
    assert read(opened(FakeDriver()), 0.0) == []


def test_closing_a_driver_that_has_gone_is_no_error() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.open = False
    reader.close()


# XIDs


def test_the_newest_xid_is_shown_and_a_bad_one_is_not_hidden_by_what_follows_upon_it() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    read(reader, 0.0)
    driver.events = [(1, 48), (1, 45)]  # the programs are cleaned up after a double-bit error
    reading = read(reader, 1.0)
    assert (reading[0].xid, reading[0].health) == (None, "ok")
    assert (reading[1].xid, reading[1].health) == (45, "degraded")
    assert reading[1].health_reason == "XID 48: double-bit memory error"


def test_a_program_that_faults_does_not_make_its_gpu_suspect() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.events = [(0, 31)]
    read(reader, 0.0)
    reading = read(reader, 1.0)[0]
    assert (reading.xid, reading.health) == (31, "ok")


def test_an_xid_is_forgiven_with_the_reset_that_follows() -> None:
    driver = gpus("a")
    reader = opened(driver)
    driver.events = [(0, 79)]
    assert read(reader, 0.0)[0].health == "lost"
    driver.faults[0, ANY] = GPU_IS_LOST
    lost = read(reader, 1.0)[0]
    assert (lost.health, lost.xid) == ("lost", 79)
    driver.faults.clear()
    back = read(reader, 2.0)[0]
    assert (back.health, back.xid) == ("ok", 79)


def test_a_lost_gpu_does_not_make_the_others_xids_unheard() -> None:
    driver = gpus("a", "b")
    reader = opened(driver)
    read(reader, 0.0)
    driver.faults[1, ANY] = GPU_IS_LOST  # from now on every wait fails while it is watched
    for second in range(1, 4):
        read(reader, second / 10)
    driver.events = [(0, 31)]
    assert read(reader, 0.5)[0].xid == 31


def test_a_gpu_that_reports_no_events_does_not_make_the_others_unheard() -> None:
    driver = gpus("a", "b")
    driver.faults[0, "watch"] = NOT_SUPPORTED
    reader = opened(driver)
    driver.events = [(1, 31)]
    assert [one.xid for one in read(reader, 0.0)] == [None, 31]


def test_events_that_fail_are_tried_again_later_and_disturb_nothing() -> None:
    driver = gpus("a")
    driver.faults[None, "open_events"] = UNKNOWN
    reader = opened(driver)
    assert [read(reader, float(second))[0].health for second in range(10)] == ["ok"] * 10
    assert driver.asked["open_events"] == 1
    driver.faults.clear()
    driver.events = [(0, 31)]
    assert read(reader, 10.0)[0].xid == 31


# Laws


def test_every_kind_of_refusal_is_one_that_some_code_has() -> None:
    assert {*KINDS.values(), NvmlFault(UNKNOWN, "").kind} == set(FaultKind)


CALLS = [ANY, "rates", "memory", "uuid", "name", "device", "watch", "process_samples", "mig_device"]
CODES = sorted({*KINDS, INVALID_ARGUMENT, UNKNOWN, 31})
Faults = dict[tuple[int | None, str], int]
GPU_FAULTS: st.SearchStrategy[Faults] = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from(CALLS)), st.sampled_from(CODES), max_size=4
)
NODE_CALLS = ["start", "stop", "count", "device", "open_events", "next_xid"]
NODE_FAULTS: st.SearchStrategy[Faults] = st.dictionaries(
    st.tuples(st.none(), st.sampled_from(NODE_CALLS)), st.sampled_from(CODES), max_size=2
)
SECONDS = st.lists(
    st.tuples(GPU_FAULTS, NODE_FAULTS, st.lists(st.tuples(st.integers(0, 2), st.integers(1, 160)))),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(SECONDS)
def test_whatever_a_driver_refuses_each_gpu_is_reported_once_and_all_come_back(
    seconds: list[tuple[Faults, Faults, list[tuple[int, int]]]],
) -> None:
    driver = gpus("a", "b", "c")
    reader = opened(driver)
    now_s = 0.0
    for gpu_faults, node_faults, events in seconds:
        driver.faults = {**gpu_faults, **node_faults}
        driver.events += events
        now_s += 1.0
        readings = read(reader, now_s)
        assert [(one.index, one.uuid) for one in readings] == [
            (0, "GPU-a"),
            (1, "GPU-b"),
            (2, "GPU-c"),
        ]
        assert all(bool(one.health_reason) == (one.health != "ok") for one in readings)
        message = NodeTelemetry(
            cluster="c",
            node="n",
            epoch=1,
            counter=1,
            observed_at_s=now_s,
            interval_s=1.0,
            source="nvml",
            gpus=tuple(readings),
        )
        assert TELEMETRY.decode(encode(message)) == message

    driver.faults = {}
    driver.events = []
    for _ in range(130):  # longer than the longest pause
        now_s += 1.0
        read(reader, now_s)
    well = [
        msgspec.structs.replace(
            one,
            xid=None,
            # An XID counts until a reset, which this driver knows nothing of.
            health="ok" if one.health_reason.startswith("XID ") else one.health,
            health_reason="",
        )
        for one in read(reader, now_s + 1.0)
    ]
    assert well == read(opened(gpus("a", "b", "c")), 0.0)
