import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.messages.telemetry import GpuHolder, GpuReading, MigInstance
from berthmaster.telemetry.dcgm import Parser
from berthmaster.telemetry.dcgm_fields import DcgmReadings, Series
from berthmaster.telemetry.source import NodeReading, SourceFailed
from tests.support.exposition import A100, labels, page, uuid

WHOLE = GpuReading(
    index=0,
    uuid=uuid(0),
    model="NVIDIA A100-SXM4-40GB",
    memory_total_mib=40_960,
    memory_used_mib=20_300,
    utilization_percent=93,
    memory_bandwidth_percent=41,
    power_w=214.318,
    power_limit_w=400.0,
    temperature_c=48,
    sm_clock_mhz=1410,
    memory_clock_mhz=1215,
    ecc_corrected=4,
    ecc_uncorrected=0,
    holders=(GpuHolder(namespace="team-a", pod="train-7", container="main"),),
)


def parse(body: bytes) -> list[Series]:
    return Parser().parse(body)


def take(body: bytes, node: str = "") -> tuple[NodeReading, ...]:
    return DcgmReadings(node).take(parse(body), now_s=0.0)


def only(body: bytes) -> GpuReading:
    ((_, (reading,), _),) = take(body)
    return reading


def test_a_page_becomes_a_reading() -> None:
    assert take(page((labels(), A100))) == (NodeReading("node-1", (WHOLE,)),)


def test_a_gpu_shared_by_two_pods_is_one_gpu_and_nothing_is_counted_twice() -> None:
    shared = page((labels(pod="a"), A100), (labels(pod="b"), A100))
    both = tuple(GpuHolder(namespace="team-a", pod=pod, container="main") for pod in "ab")
    assert take(shared) == (NodeReading("node-1", (replace(WHOLE, holders=both),)),)


def test_a_gpu_without_a_pod_is_read_alike() -> None:
    nobodys = replace(WHOLE, holders=())
    assert only(page((labels(pod="", namespace="", container=""), A100))) == nobodys
    # A pod without its namespace, and a name that cannot be one.
    assert only(page((labels(namespace=""), A100))) == nobodys
    assert only(page((labels(pod="x" * 300), A100))) == nobodys
    older = labels(pod="", namespace="", container="", pod_name="p", pod_namespace="n")
    assert only(page((older, A100))).holders == (GpuHolder(namespace="n", pod="p"),)


def test_the_older_labels_are_understood() -> None:
    older = labels(UUID="", uuid=uuid(0), Hostname="", hostname="node-1")
    assert take(page((older, A100))) == (NodeReading("node-1", (WHOLE,)),)


UNKNOWN = {
    "what is not exported": {},
    "DCGM's blank for whole numbers": {"DCGM_FI_DEV_GPU_UTIL": 0x7FFFFFF0},
    "the same, of what may be as large": {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0x7FFFFFF0},
    "its longer blank": {"DCGM_FI_DEV_FB_USED": 0x7FFFFFFFFFFFFFF2, "DCGM_FI_DEV_FB_TOTAL": 2**63},
    "its blank for fractions": {"DCGM_FI_DEV_POWER_USAGE": 140737488355328.0},
    "no number": {"DCGM_FI_DEV_GPU_UTIL": "NaN"},
    "infinity": {"DCGM_FI_DEV_GPU_UTIL": "+Inf"},
    "more than all": {"DCGM_FI_DEV_GPU_UTIL": 120},
    "less than nothing": {"DCGM_FI_DEV_GPU_UTIL": -1},
}


@pytest.mark.parametrize("values", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_rather_than_zero_is(values: dict[str, float | str]) -> None:
    reading = only(page((labels(), {"DCGM_FI_DEV_GPU_TEMP": 40, **values})))
    assert reading == GpuReading(
        index=0,
        uuid=uuid(0),
        model="NVIDIA A100-SXM4-40GB",
        temperature_c=40,
        holders=WHOLE.holders,
    )


def test_the_engine_stands_in_where_utilization_is_not_exported() -> None:
    reading = only(page((labels(), {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.4567})))
    assert reading.utilization_percent == 45.7
    assert reading.sm_active_percent is None


def test_how_many_sms_had_work_is_told_where_it_is_exported() -> None:
    reading = only(page((labels(), {"DCGM_FI_PROF_SM_ACTIVE": 0.0312})))
    assert (reading.utilization_percent, reading.sm_active_percent) == (None, 3.1)


UNWELL = {
    "a double-bit error": ({"DCGM_FI_DEV_XID_ERRORS": 48}, "XID 48: double-bit memory error"),
    "uncorrected errors": ({"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2}, "2 uncorrected memory errors"),
    "rows that failed": (
        {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1},
        "memory rows could not be remapped: the GPU needs replacing",
    ),
    "heat, in DCGM 3": ({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0x40}, "slowed down by heat"),
    "heat, in DCGM 4": ({"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x40}, "slowed down by heat"),
}


@pytest.mark.parametrize(("values", "why"), UNWELL.values(), ids=UNWELL)
def test_a_gpu_is_degraded_by(values: dict[str, float], why: str) -> None:
    reading = only(page((labels(), A100 | values)))
    assert (reading.health, reading.health_reason) == ("degraded", why)


def test_a_bad_xid_counts_until_the_exporter_forgets_it_though_a_passing_one_follows() -> None:
    readings = DcgmReadings("")
    seen = []
    for xid in (0, 31, 48, 45, 0):
        body = page((labels(), A100 | {"DCGM_FI_DEV_XID_ERRORS": xid}))
        ((_, (reading,), _),) = readings.take(parse(body), now_s=0.0)
        seen.append((reading.xid, reading.health))
    assert seen == [(None, "ok"), (31, "ok"), (48, "degraded"), (45, "degraded"), (None, "ok")]


def test_a_gpu_that_the_exporter_tells_of_no_more_is_lost_until_it_does_again() -> None:
    readings = DcgmReadings("")
    both = page((labels(0), A100), (labels(1), A100))
    ((_, before, _),) = readings.take(parse(both), now_s=0.0)
    ((_, after, _),) = readings.take(parse(page((labels(1), A100))), now_s=1.0)
    assert after == (
        GpuReading(
            index=0,
            uuid=uuid(0),
            model="NVIDIA A100-SXM4-40GB",
            health="lost",
            health_reason="dcgm-exporter does not report it any more",
        ),
        before[1],
    )
    assert readings.take(parse(both), now_s=2.0) == (NodeReading("node-1", before),)


def test_a_gpu_in_the_place_of_another_does_not_inherit_its_faults() -> None:
    readings = DcgmReadings("")
    ill = A100 | {"DCGM_FI_DEV_XID_ERRORS": 48}
    readings.take(parse(page((labels(), ill))), now_s=0.0)
    fresh = A100 | {"DCGM_FI_DEV_XID_ERRORS": 31}
    ((_, (reading,), _),) = readings.take(parse(page((labels(UUID="GPU-new"), fresh))), now_s=1.0)
    assert (reading.uuid, reading.xid, reading.health) == ("GPU-new", 31, "ok")


def test_a_page_of_several_hosts_is_several_nodes_and_one_that_is_gone_is_silent() -> None:
    readings = DcgmReadings("")
    both = page((labels(host="a"), A100), (labels(host="b"), A100))
    one = page((labels(host="b"), A100))
    assert readings.take(parse(both), 0.0) == (
        NodeReading("a", (WHOLE,)),
        NodeReading("b", (WHOLE,)),
    )
    assert readings.take(parse(one), 1.0) == (NodeReading("b", (WHOLE,)),)


def test_the_node_that_was_named_is_picked_from_several() -> None:
    both = page((labels(host="a"), A100), (labels(host="b"), A100))
    assert take(both, node="b") == (NodeReading("b", (WHOLE,)),)
    with pytest.raises(
        SourceFailed, match=r"none of the 2 Hostname labels there \(a, b, …\) is 'c'"
    ):
        take(both, node="c")


def test_an_exporter_that_names_its_own_pod_as_host_is_taken_for_the_node_that_was_named() -> None:
    body = page((labels(host="dcgm-exporter-x7f2p"), A100))
    assert take(body, node="n1") == (NodeReading("n1", (WHOLE,)),)


def test_mig_instances_are_listed_below_their_gpu() -> None:
    of_the_gpu = {"DCGM_FI_DEV_GPU_TEMP": 40, "DCGM_FI_DEV_POWER_USAGE": 99.5}
    body = page(
        (
            labels(GPU_I_PROFILE="3g.20gb", GPU_I_ID="1"),
            of_the_gpu
            | {"DCGM_FI_DEV_FB_USED": 11_000, "DCGM_FI_DEV_FB_FREE": 8_968}
            | {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.5, "DCGM_FI_DEV_GPU_UTIL": 0},
        ),
        (
            labels(GPU_I_PROFILE="1g.5gb", GPU_I_ID="9", pod="small"),
            of_the_gpu | {"DCGM_FI_DEV_FB_USED": 7, "DCGM_FI_DEV_GPU_UTIL": 0},
        ),
    )
    assert only(body) == GpuReading(
        index=0,
        uuid=uuid(0),
        model="NVIDIA A100-SXM4-40GB",
        power_w=99.5,
        temperature_c=40,
        mig=(
            MigInstance(
                uuid=f"{uuid(0)}/1",
                profile="3g.20gb",
                memory_mib=19_968,
                memory_used_mib=11_000,
                utilization_percent=50.0,
            ),
            MigInstance(uuid=f"{uuid(0)}/9", profile="1g.5gb", memory_mib=5_120, memory_used_mib=7),
        ),
        holders=tuple(
            GpuHolder(namespace="team-a", pod=pod, container="main", device=f"{uuid(0)}/{number}")
            for pod, number in (("small", 9), ("train-7", 1))
        ),
    )


@pytest.mark.parametrize(
    ("slices", "busy"),
    [
        ((("3g.20gb", 0.8), ("1g.5gb", 0.3)), 38.6),  # 3/7 of 80 and 1/7 of 30
        ((("7g.40gb", 0.5),), 50.0),
        ((("3g.20gb", 0.0), ("1g.5gb+me", 0.0)), 0.0),
        ((("1g.5gb", 1.0),) * 7, 100.0),
        ((("3g.20gb", 0.8), ("1g.5gb", None)), None),  # unknown is not idle
        ((("3g.20gb", 0.8), ("odd", 0.3)), None),
        ((("7g.40gb", 1.0), ("1g.5gb", 1.0)), None),  # more than there is
    ],
)
def test_a_gpu_in_mig_mode_is_used_as_its_slices_are(
    slices: tuple[tuple[str, float | None], ...], busy: float | None
) -> None:
    rows = [
        (
            labels(GPU_I_PROFILE=profile, GPU_I_ID=str(number)),
            {"DCGM_FI_DEV_FB_USED": 7}
            | ({} if part is None else {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": part}),
        )
        for number, (profile, part) in enumerate(slices, 1)
    ]
    assert only(page(*rows)).utilization_percent == busy


def test_what_a_parser_remembers_does_not_change_what_it_reads() -> None:
    parser = Parser()
    hot = page((labels(modelName='A "B" {C} 5'), A100 | {"DCGM_FI_DEV_GPU_TEMP": 90}))
    for body in (page((labels(), A100)), hot, page((labels(pod="other"), A100)), hot):
        escaped = body.replace(b'A "B"', rb"A \"B\"")
        assert parser.parse(escaped) == parse(escaped)


def test_time_stamps_are_understood() -> None:
    (series,) = parse(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41 1700000000000\n')
    assert series == Series("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}, 41.0)


def test_the_memory_of_series_is_bounded() -> None:
    parser = Parser(max_heads=10)
    for number in range(100):  # a pod after the other
        parser.parse(page((labels(pod=f"p{number}"), {"DCGM_FI_DEV_GPU_TEMP": 1})))
    assert len(parser._heads) <= 11


NO_PAGE = {
    "an empty page": (b"", "no DCGM_FI_DEV_"),
    "another exporter": (b"node_load1 0.5\n", "no DCGM_FI_DEV_"),
    "a page of HTML": (b"<html><body>hello</body></html>\n", "no DCGM_FI_DEV_"),
    "a page cut short": (page((labels(), A100))[:-10], "ends in the middle of a line"),
    "a value that is none": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} much\n', "not Prometheus' text"),
    "labels without an end": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0 3\n', "not Prometheus' text"),
    "a series without a value": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"}\n', "not Prometheus' text"),
    "a GPU without a number": (b'DCGM_FI_DEV_GPU_UTIL{gpu="x"} 3\n', "no DCGM_FI_DEV_"),
}


@pytest.mark.parametrize(("body", "why"), NO_PAGE.values(), ids=NO_PAGE)
def test_no_reading_comes_of(body: bytes, why: str) -> None:
    with pytest.raises(SourceFailed, match=why):
        take(body)


@given(st.binary(max_size=200))
def test_whatever_comes_instead_of_a_page_is_an_error_that_is_expected(noise: bytes) -> None:
    good = page((labels(), A100))
    for body in (noise + b"\n", good + b"DCGM_FI_DEV_GPU_UTIL{" + noise + b"\n"):
        try:
            take(body)
        except SourceFailed:
            pass
