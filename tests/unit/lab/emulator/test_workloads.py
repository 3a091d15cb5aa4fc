from itertools import islice

import pytest

from berthmaster.lab.emulator.workloads import (
    OPENB_PODS,
    Arrival,
    WorkloadError,
    generated,
    parse_workloads,
)
from berthmaster.lib.messages.families import JOB_REQUESTS, encode
from berthmaster.lib.messages.workload import JobRequest, PodSet
from scripts.benchmarks.trace_files import TRACES

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)


def test_a_pod_of_the_list_becomes_a_request_with_its_arrival_and_duration() -> None:
    text = HEADER + (
        "openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,500,1000,600\n"
        "Pod_0.X,4000,1024,0,0,,BE,Pending,400,900,\n"
    )
    assert parse_workloads(text, prefix="r1") == [
        Arrival(
            0.0,
            JobRequest(
                id="r1-pod-0-x",
                pod_sets=(PodSet(cpu_milli=4000, memory_mib=1024),),
                expected_duration_s=500.0,
            ),
        ),
        Arrival(
            100.0,
            JobRequest(
                id="r1-openb-pod-0001",
                priority=200,
                pod_sets=(
                    PodSet(
                        cpu_milli=6000,
                        memory_mib=12288,
                        gpus=1,
                        gpu_milli=460,
                        gpu_models=("V100M16", "V100M32"),
                    ),
                ),
                expected_duration_s=400.0,
            ),
        ),
    ]


def test_a_list_without_times_gets_them_from_the_seed() -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,8,1000\nb,1,1,1,500\n"
    first = parse_workloads(text, seed=1)
    assert first == parse_workloads(text, seed=1)
    assert first != parse_workloads(text, seed=2)
    assert [a.request.id for a in first] == ["a", "b"]
    assert all((a.request.expected_duration_s or 0) >= 1 for a in first)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name\nx\n", "lacks cpu_milli"),
        (HEADER, "no pods"),
        (HEADER + "a,1,1,1,0,,LS,Running,0,1,0\n", "gpu_milli is 0 for one GPU"),
        (HEADER + "a,1,1,-2,0,,LS,Running,0,1,0\n", "line 2: num_gpu is '-2'"),
        (HEADER + "a,1,1,1,1000,,LS,Running,nan,1,0\n", "creation_time is 'nan'"),
        (HEADER + "a,1,1,0,0,,LS,R,0,1,0\nA,1,1,0,0,,LS,R,0,1,0\n", "'a' is there twice"),
        (HEADER + "___,1,1,0,0,,LS,R,0,1,0\n", "no letter or digit"),
    ],
)
def test_bad_pod_list_names_line(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        parse_workloads(text)


@pytest.mark.parametrize("name", sorted(OPENB_PODS))
def test_every_openb_list_is_read_whole_and_gives_valid_requests(name: str) -> None:
    path = TRACES / OPENB_PODS[name]
    if not path.exists():
        pytest.skip("no traces at BERTH_TRACES")
    arrivals = parse_workloads(path.read_text())
    assert len(arrivals) == len(path.read_text().splitlines()) - 1
    for arrival in arrivals:
        assert JOB_REQUESTS.decode(encode(arrival.request)) == arrival.request


def test_generated_requests_are_valid_repeat_with_the_seed_and_have_the_published_mix() -> None:
    first = list(generated(seed=7, rate_per_s=10, count=2000))
    assert first == list(generated(seed=7, rate_per_s=10, count=2000))
    assert first[:5] == list(islice(generated(seed=7, rate_per_s=10), 5))
    for arrival in first:
        assert JOB_REQUESTS.decode(encode(arrival.request)) == arrival.request
    assert len(first) == 2000
    assert 170 < first[-1].at_s < 230  # 2,000 at 10 a second
    sets = [arrival.request.pod_sets[0] for arrival in first]
    assert 0.10 < sum(s.gpus == 0 for s in sets) / 2000 < 0.17
    assert 0.33 < sum(s.gpus == 1 and s.gpu_milli < 1000 for s in sets) / 2000 < 0.43
    assert any(s.gpus == 8 for s in sets)
    assert all(s.count == 1 for s in sets)


def test_gangs_are_made_on_request() -> None:
    arrivals = list(generated(seed=7, rate_per_s=10, count=500, gang_share=1.0, largest_gang=4))
    counts = {a.request.pod_sets[0].count for a in arrivals}
    assert counts == {1, 2, 3, 4}
