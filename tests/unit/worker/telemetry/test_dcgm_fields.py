import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading, MigInstance
from berthmaster.worker.telemetry.core.dcgm_fields import DcgmReadings, Parsed, Series
from berthmaster.worker.telemetry.core.source import NodeReading, SourceFailed
from berthmaster.worker.telemetry.dcgm import Parser
from tests.support.exposition import A100, labels, page, uuid

WHOLE = GpuReading(
    index=0,
    uuid=uuid(0),
    model="NVIDIA A100-SXM4-40GB",
    memory_total_mib=40_960,
    memory_used_mib=20_300,
    utilization_percent=93,
    tensor_active_percent=31.0,
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


def parse(body: bytes) -> Parsed:
    return Parser().parse(body)


def take(body: bytes, node: str = "") -> tuple[NodeReading, ...]:
    return DcgmReadings(node).take(parse(body), now_s=0.0)


def only(body: bytes) -> GpuReading:
    ((_, (reading,), *_),) = take(body)
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


@pytest.mark.parametrize("xid", [46, 62, 79, 95, 119, 120, 140, 143])
def test_a_fatal_xid_means_lost_though_lesser_ones_follow(xid: int) -> None:
    readings = DcgmReadings("")
    health = []
    for number in (xid, 74, 31, 0):
        body = page((labels(), A100 | {"DCGM_FI_DEV_XID_ERRORS": number}))
        ((_, (reading,), *_),) = readings.take(parse(body), now_s=0.0)
        health.append(reading.health)
    assert health == ["lost", "lost", "lost", "ok"]


@pytest.mark.parametrize(("values", "why"), UNWELL.values(), ids=UNWELL)
def test_a_gpu_is_degraded_by(values: dict[str, float], why: str) -> None:
    reading = only(page((labels(), A100 | values)))
    assert (reading.health, reading.health_reason) == ("degraded", why)


def test_a_bad_xid_counts_until_the_exporter_forgets_it_though_a_passing_one_follows() -> None:
    readings = DcgmReadings("")
    seen = []
    for xid in (0, 31, 48, 45, 0):
        body = page((labels(), A100 | {"DCGM_FI_DEV_XID_ERRORS": xid}))
        ((_, (reading,), *_),) = readings.take(parse(body), now_s=0.0)
        seen.append((reading.xid, reading.health))
    assert seen == [(None, "ok"), (31, "ok"), (48, "degraded"), (45, "degraded"), (None, "ok")]


def test_a_gpu_that_the_exporter_tells_of_no_more_is_lost_until_it_does_again() -> None:
    readings = DcgmReadings("")
    both = page((labels(0), A100), (labels(1), A100))
    ((_, before, *_),) = readings.take(parse(both), now_s=0.0)
    ((_, after, *_),) = readings.take(parse(page((labels(1), A100))), now_s=1.0)
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
    ((_, (reading,), *_),) = readings.take(parse(page((labels(UUID="GPU-new"), fresh))), now_s=1.0)
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
    (series,) = parse(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41 1700000000000\n').series
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
    "a value that is none": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} much\n', "1 cannot be read"),
    "labels without an end": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0 3\n', "1 cannot be read"),
    "a series without a value": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"}\n', "1 cannot be read"),
    "a page of half a line": (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 4', "1 cannot be read"),
    "a GPU without a number": (b'DCGM_FI_DEV_GPU_UTIL{gpu="x"} 3\n', "no DCGM_FI_DEV_"),
}


@pytest.mark.parametrize(("body", "why"), NO_PAGE.values(), ids=NO_PAGE)
def test_no_reading_comes_of(body: bytes, why: str) -> None:
    with pytest.raises(SourceFailed, match=why):
        take(body)


BAD = (
    b'DCGM_FI_DEV_GPU_UTIL{gpu="0',
    b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} much',
    b'DCGM_FI_DEV_GPU_UTIL{gpu="x"} 3',
    b'DCGM_FI_DEV_GPU_UTIL{gpu="99999"} 3',
    b'DCGM_FI_DEV_GPU_UTIL{gpu="0"}',
    b"%%% \xff\xfe",
    b"\x00",
)


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_skipped_counted_and_named(line: bytes) -> None:
    good = page((labels(), A100))
    for body in (line + b"\n" + good, good + line + b"\n"):
        (node,) = take(body)
        assert (node.node, node.gpus, node.lines_skipped) == ("node-1", (WHOLE,), 1)
        first = repr(line.decode(errors="replace")[:80])
        told = f"1 cannot be read, the first: {first}"
        assert node.lacks == (f"lines of dcgm-exporter's page: {told}",)


def test_bad_lines_are_named_within_bounds() -> None:
    long = b'DCGM_FI_DEV_GPU_UTIL{"' * 1000 + b"\n"
    parsed = parse(page((labels(), A100)) + long + b"%\n" * 900)
    assert (parsed.skipped, len(parsed.named), len(parsed.named[0])) == (901, 256, 1000)
    assert len(parsed.lacks[0]) < 200


def test_a_page_cut_short_makes_no_gpu_lost() -> None:
    readings = DcgmReadings("")
    body = page((labels(0), A100), (labels(1), A100))
    readings.take(parse(body), now_s=0.0)
    cut = body[: body.index(b'gpu="1"') - 4]  # in the first line of the second GPU
    ((_, (first, second), lacks, skipped, *_),) = readings.take(parse(cut), now_s=1.0)
    assert (first.health, first.sm_clock_mhz, first.memory_used_mib) == ("ok", 1410, None)
    assert (second.uuid, second.health) == (uuid(1), "degraded")
    assert second.health_reason.startswith("lines of dcgm-exporter's page")
    assert (len(lacks), skipped) == (1, 1)


def test_a_gpu_with_bad_lines_is_degraded_and_one_without_lines_lost() -> None:
    readings = DcgmReadings("")
    readings.take(parse(page(*((labels(at), A100) for at in range(3)))), now_s=0.0)
    bad = f'DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="{uuid(1)}"}} ?\n'.encode()
    ((_, gpus, *_),) = readings.take(parse(page((labels(0), A100)) + bad), now_s=1.0)
    assert [gpu.health for gpu in gpus] == ["ok", "degraded", "lost"]


def test_a_gpu_without_a_uuid_is_degraded() -> None:
    nameless = labels(UUID="")
    reading = only(page((nameless, A100)))
    assert (reading.uuid, reading.health) == ("", "degraded")
    assert reading.health_reason == "its source reports no UUID of it"
    assert only(page((labels(UUID="G" * 129), A100))).health == "degraded"
    # A series without a UUID is of the GPU that others name under its index.
    both = page((labels(), A100), (nameless, {"DCGM_FI_PROF_SM_ACTIVE": 0.5}))
    assert only(both) == replace(WHOLE, sm_active_percent=50.0)


def seen(readings: DcgmReadings, *parts: tuple[int, str], now_s: float) -> list[tuple[str, str]]:
    """The UUID and health of each GPU by its index, after a page with these."""
    body = page(*((labels(index, UUID=name), A100) for index, name in parts))
    ((_, gpus, *_),) = readings.take(parse(body), now_s)
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    return [(gpu.uuid, gpu.health) for gpu in gpus]


def test_gpus_are_known_by_uuid_when_their_indices_move() -> None:
    readings = DcgmReadings("")
    a, b, c = "GPU-a", "GPU-b", "GPU-c"
    seen(readings, (0, a), (1, b), (2, c), now_s=0.0)
    # The first is lost, and the driver counts the others again.
    lost = (a, "lost")
    assert seen(readings, (0, b), (1, c), now_s=1.0) == [(b, "ok"), (c, "ok"), lost]
    assert seen(readings, (0, c), (1, b), now_s=2.0) == [(c, "ok"), (b, "ok"), lost]
    # It is back, and has its old index.
    now = seen(readings, (0, a), (1, b), (2, c), now_s=3.0)
    assert now == [(a, "ok"), (b, "ok"), (c, "ok")]


def test_a_fault_moves_with_its_gpu_and_not_with_the_index() -> None:
    readings = DcgmReadings("")
    ill = A100 | {"DCGM_FI_DEV_XID_ERRORS": 48}
    readings.take(parse(page((labels(0), ill), (labels(1), A100))), now_s=0.0)
    passing = A100 | {"DCGM_FI_DEV_XID_ERRORS": 31}
    moved = page((labels(0, UUID=uuid(1)), passing), (labels(1, UUID=uuid(0)), passing))
    ((_, gpus, *_),) = readings.take(parse(moved), now_s=1.0)
    assert [(gpu.uuid, gpu.health) for gpu in gpus] == [(uuid(1), "ok"), (uuid(0), "degraded")]


def test_indices_that_contradict_each_other_degrade_the_gpu() -> None:
    one_twice = only(page((labels(0), A100), (labels(1, UUID=uuid(0)), A100)))
    assert (one_twice.uuid, one_twice.health) == (uuid(0), "degraded")
    two_in_one = page((labels(0), A100), (labels(0, UUID="GPU-other"), A100))
    ((_, gpus, *_),) = take(two_in_one)
    assert [(gpu.index, gpu.health) for gpu in gpus] == [(0, "ok"), (1, "degraded")]


def test_uuids_without_end_take_bounded_memory() -> None:
    readings, count = DcgmReadings(""), 0
    for scrape in range(40):
        # All under one index, so that none takes the place of another.
        body = page(
            *(
                (labels(0, UUID=f"GPU-{scrape}-{at}"), {"DCGM_FI_DEV_GPU_TEMP": 40})
                for at in range(60)
            )
        )
        ((_, gpus, *_),) = readings.take(parse(body), float(scrape))
        count = len(gpus)
        assert count <= 1024
    assert count == 1024


ABSURD = {
    "DCGM_FI_DEV_FB_USED": (1_900_000_000, "memory_used_mib"),  # 2 PB
    "DCGM_FI_DEV_POWER_USAGE": (-3.5, "power_w"),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": (1e7, "power_limit_w"),
    "DCGM_FI_DEV_GPU_UTIL": (900, "utilization_percent"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (101, "memory_bandwidth_percent"),
    "DCGM_FI_DEV_GPU_TEMP": (5000, "temperature_c"),
    "DCGM_FI_DEV_SM_CLOCK": (-1, "sm_clock_mhz"),
    "DCGM_FI_DEV_XID_ERRORS": (1e8, "xid"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (-1, "ecc_uncorrected"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_value_is_unknown_and_named(name: str) -> None:
    value, field = ABSURD[name]
    ((_, (reading,), _, _, refused, _),) = take(page((labels(), A100 | {name: value})))
    assert (getattr(reading, field), reading.health) == (None, "ok")
    assert refused == (f"{name} of GPU 0 is {value:g}",)


@pytest.mark.parametrize("value", [0x7FFFFFF0, "NaN", "+Inf"])
def test_what_dcgm_calls_unknown_is_not_named_as_absurd(value: float | str) -> None:
    body = page((labels(), A100 | {"DCGM_FI_DEV_GPU_TEMP": value}))
    ((_, (reading,), _, _, refused, _),) = take(body)
    assert (reading.temperature_c, refused) == (None, ())


@given(st.binary(max_size=200))
def test_whatever_comes_instead_of_a_page_is_an_error_that_is_expected(noise: bytes) -> None:
    good = page((labels(), A100))
    for body in (noise + b"\n", good + b"DCGM_FI_DEV_GPU_UTIL{" + noise + b"\n"):
        try:
            take(body)
        except SourceFailed:
            pass
