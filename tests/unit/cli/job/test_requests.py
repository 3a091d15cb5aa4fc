"""From flags and files to requests, and what is said when they cannot become one."""

from pathlib import Path

import click
import msgspec
import pytest

from berthmaster.cli.job.files import id_of, read_requests
from berthmaster.cli.job.requests import OPTIONS, from_flags, parse_gpus
from berthmaster.cli.job.submit import bodies_of
from berthmaster.cli.values import WrongInput, parse_cpu_milli, parse_duration_s, parse_memory_mib
from berthmaster.lib.messages.runtimes import Runtime
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, SecretKey, Topology


def test_flags_become_the_request_that_they_describe() -> None:
    flags = {
        "id": "train-7",
        "gpus": "8",
        "model": ("A100", "H100"),
        "gpu_memory": "40Gi",
        "cpu": "2.5",
        "memory": "64Gi",
        "count": 4,
        "queue": "vision",
        "priority": 50,
        "duration": "1h30m",
        "deadline": "2d",
        "cluster": ("berlin",),
        "cluster_label": ("region=eu",),
        "node_label": ("disk=nvme",),
        "label": ("team=a=b",),
        "image": "torch:2",
        "env": ("EPOCHS=3",),
        "secret_env": ("WANDB_API_KEY=wandb/api-key",),
    }
    assert from_flags(flags, ["python", "train.py"], "unused") == JobRequest(
        id="train-7",
        queue="vision",
        priority=50,
        pod_sets=(
            PodSet(
                count=4,
                cpu_milli=2500,
                memory_mib=65536,
                gpus=8,
                gpu_memory_mib=40960,
                gpu_models=("A100", "H100"),
                node_labels={"disk": "nvme"},
            ),
        ),
        clusters=("berlin",),
        cluster_labels={"region": "eu"},
        run=RunSpec(
            image="torch:2",
            command=("python", "train.py"),
            env={"EPOCHS": "3"},
            secret_env={"WANDB_API_KEY": SecretKey(name="wandb", key="api-key")},
        ),
        expected_duration_s=5400.0,
        deadline_s=172_800.0,
        labels={"team": "a=b"},
    )


def test_flags_that_are_not_given_leave_the_defaults() -> None:
    assert from_flags({"gpus": "0.5"}, [], "job-1") == JobRequest(
        id="job-1", pod_sets=(PodSet(gpus=1, gpu_milli=500),)
    )


def test_flags_say_how_pods_stand_to_each_other_and_which_gpus_they_would_rather_have() -> None:
    flags = {
        "gpus": "4",
        "count": 8,
        "prefer_model": ("H100", "A100"),
        "same": "topology.kubernetes.io/zone",
        "max_pods_a_node": 2,
        "fewest_nodes": True,
        "one_gpu_domain": True,
    }
    topology = Topology(
        same="topology.kubernetes.io/zone",
        max_pods_a_node=2,
        nodes="fewest",
        gpu_domain="required",
    )
    assert from_flags(flags, [], "job-1").pod_sets == (
        PodSet(count=8, gpus=4, prefer_gpu_models=("H100", "A100"), topology=topology),
    )


def test_a_part_of_a_gpu_is_asked_for_by_share_memory_or_mig_profile() -> None:
    def pods(**flags: object) -> PodSet:
        return from_flags(flags, [], "job-1").pod_sets[0]

    assert pods(gpus="8Gi") == PodSet(gpus=1, gpu_milli=1, gpu_memory_mib=8192)
    assert pods(gpus="0.25", gpu_memory="8Gi") == PodSet(gpus=1, gpu_milli=250, gpu_memory_mib=8192)
    assert pods(mig="1g.10gb") == PodSet(gpus=1, gpu_milli=142, mig_profile="1g.10gb")
    assert pods(mig="7g.80gb", gpus="1") == PodSet(gpus=1, gpu_milli=999, mig_profile="7g.80gb")


def test_flags_ask_for_tpus_other_resources_claims_and_isolation() -> None:
    flags = {
        "tpus": 4,
        "tpu_accelerator": ("tpu-v5p-slice",),
        "tpu_topology": "2x2x2",
        "count": 2,
        "resource": ("rdma/hca=1", "vpc.amazonaws.com/efa=4"),
        "claim": ("nic",),
    }
    assert from_flags(flags, [], "job-1").pod_sets == (
        PodSet(
            count=2,
            tpus=4,
            tpu_accelerators=("tpu-v5p-slice",),
            tpu_topology="2x2x2",
            resources={"rdma/hca": 1, "vpc.amazonaws.com/efa": 4},
            claims=("nic",),
        ),
    )
    assert from_flags({"gpus": "0.5", "isolation": "memory"}, [], "job-1").pod_sets == (
        PodSet(gpus=1, gpu_milli=500, isolation="memory"),
    )


def test_flags_say_how_clusters_rank_and_where_the_data_is() -> None:
    flags = {
        "profile": "cheapest",
        "weight": ("room=-2", "price=9.5"),
        "data_at": ("berlin", "region=eu"),
    }
    assert from_flags(flags, [], "job-1") == JobRequest(
        id="job-1",
        profile="cheapest",
        weights={"room": -2.0, "price": 9.5},
        data=("berlin", "region=eu"),
    )


WEIGHT = (
    "is no weight; right is PART=N, N from -10 to 10 and PART one of "
    "fit, room, idle, interference, wait, price, locality, tier, headroom"
)
GPUS = "is no number of GPUs; right are 0, 1, 8, a share such as 0.5, or its memory such as 8Gi"
RESOURCE = "is none; right is rdma/hca=1, in whole pieces"
A_NODE = "pod_sets[0].topology.max_pods_a_node"
WHOLE = "a whole number from"
ID_WORDS = "1 to 52 lower-case letters, digits or '-', the first and the last a letter or digit"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"gpus": "1.5"}, f"'1.5' {GPUS}"),
        ({"gpus": "-1"}, f"'-1' {GPUS}"),
        ({"gpus": "nan"}, f"'nan' {GPUS}"),
        ({"gpus": "inf"}, f"'inf' {GPUS}"),
        ({"gpus": "8Xi"}, f"'8Xi' {GPUS}"),
        (
            {"gpus": "8Gi", "gpu_memory": "4Gi"},
            "--gpu-memory: --gpus 8Gi is the part's memory already",
        ),
        ({"mig": "small"}, "--mig: 'small' is no MIG profile; right is 1g.10gb"),
        (
            {"mig": "1g.10gb", "gpus": "0.5"},
            "--mig: 1g.10gb is a part of one GPU; leave out --gpus 0.5",
        ),
        (
            {"max_pods_a_node": -1},
            f"--max-pods-a-node: {A_NODE} would be -1; right is {WHOLE} 0 to 4096",
        ),
        ({"memory": "lots"}, "'lots' is no amount of memory; right are 512 (MiB), 512Mi, 16Gi"),
        ({"cpu": "-2"}, "'-2' is no number of CPUs; right are 4, 0.5, 250m"),
        ({"cpu": "inf"}, "'inf' is no number of CPUs; right are 4, 0.5, 250m"),
        ({"cpu": "nan"}, "'nan' is no number of CPUs; right are 4, 0.5, 250m"),
        ({"duration": "soon"}, "'soon' is no duration; right are 90s, 1.5m, 2h, 1h30m"),
        ({"weight": ("fit=11",)}, f"'fit=11' {WEIGHT}"),
        ({"weight": ("fit=nan",)}, f"'fit=nan' {WEIGHT}"),
        ({"weight": ("speed=1",)}, f"'speed=1' {WEIGHT}"),
        ({"weight": ("fit",)}, f"'fit' {WEIGHT}"),
        ({"label": ("team",)}, "'team' is no label; right is key=value"),
        ({"gpus": "65"}, f"--gpus: pod_sets[0].gpus would be 65; right is {WHOLE} 0 to 64"),
        ({"count": 5000}, f"--count: pod_sets[0].count would be 5000; right is {WHOLE} 1 to 4096"),
        ({"count": 0}, f"--count: pod_sets[0].count would be 0; right is {WHOLE} 1 to 4096"),
        ({"gpus": "0Gi"}, "--gpus: 0Gi is no part of a GPU; right is its memory such as 8Gi"),
        ({"gpus": ""}, f"'' {GPUS}"),
        ({"cpu": ""}, "'' is no number of CPUs; right are 4, 0.5, 250m"),
        ({"memory": ""}, "'' is no amount of memory; right are 512 (MiB), 512Mi, 16Gi"),
        ({"duration": ""}, "'' is no duration; right are 90s, 1.5m, 2h, 1h30m"),
        ({"id": ""}, f'--id: id would be ""; right is {ID_WORDS}'),
        ({"mig": ""}, "--mig: '' is no MIG profile; right is 1g.10gb"),
        ({"resource": ("rdma/hca",)}, f"--resource: 'rdma/hca' {RESOURCE}"),
        ({"resource": ("rdma/hca=0.5",)}, f"--resource: 'rdma/hca=0.5' {RESOURCE}"),
        ({"resource": ("a/b=1", "a/b=2")}, "--resource: a/b is given twice; add it up"),
        (
            {"resource": ("a/b=0",)},
            f'--resource: pod_sets[0].resources["a/b"] would be 0; right is {WHOLE} 1 to 1000000',
        ),
        ({"tpus": 65}, f"--tpus: pod_sets[0].tpus would be 65; right is {WHOLE} 0 to 64"),
        (
            {"isolation": "soft"},
            (
                '--isolation: pod_sets[0].isolation would be "soft"; right is one of "", '
                '"hardware", "memory", "none"'
            ),
        ),
        ({"id": "a b"}, f'--id: id would be "a b"; right is {ID_WORDS}'),
    ],
)
def test_a_wrong_flag_is_named_with_what_would_be_right(
    flags: dict[str, object], said: str
) -> None:
    with pytest.raises(WrongInput) as told:
        from_flags(flags, [], "job-1")
    assert str(told.value) == said


def test_without_flags_a_file_is_read_and_with_one_it_is_refused(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []

    @click.command()
    @OPTIONS
    def command(**flags: object) -> None:
        seen.append(flags)

    path = tmp_path / "job.json"
    path.write_bytes(b'{"id":"a"}')
    for given in ([], ["--fewest-nodes"], ["--one-gpu-domain"], ["--gpus", "1"]):
        command.main(given, standalone_mode=False)
    assert bodies_of((str(path),), seen[0]) == [b'{"id":"a"}']
    for flags in seen[1:]:
        with pytest.raises(WrongInput, match="give files or flags, not both"):
            bodies_of((str(path),), flags)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        (" 90s ", 90),
        ("1.5m", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h0m30s", 3630),
        ("1w2d", 777_600),
        ("1d12h", 129_600),
        ("250ms", 0.25),
        ("1s250ms", 1.25),
        ("36525d", 36_525 * 86_400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "1h30",  # 30 of what?
        "30 1h",
        "30m1h",
        "1m1m",
        "1h 30m",
        "1:30",
        "1,5h",
        ".5h",
        "1.h",
        "h",
        "2H",
        "2M",
        "2y",
        "2 hours",
        "-5s",
        "+5s",
        "1e3",
        "1_000",
        "٣s",
        "nan",
        "inf",
        "36526d",
        "9" * 400 + "s",
        "9" * 400,
        "0",
        "0s",
        "0h0m",
    ],
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(WrongInput, match=r"is no duration; right are 90s, 1\.5m, 2h, 1h30m"):
        parse_duration_s(text)


def test_where_a_field_takes_0_so_does_its_flag() -> None:
    made = from_flags({"grace": "0s", "backoff": "0"}, [], "job-1")
    assert (made.grace_s, made.backoff_s) == (0.0, 0.0)
    assert from_flags({"grace": "0m0s"}, [], "job-1").grace_s == 0.0
    with pytest.raises(WrongInput, match=r"'-1s' is no duration; right are .*, 0s$"):
        from_flags({"grace": "-1s"}, [], "job-1")
    for flag in ("duration", "deadline", "checkpoint_every", "max_run"):
        with pytest.raises(WrongInput, match=r"'0s' is no duration; right are .*, 1h30m$"):
            from_flags({flag: "0s"}, [], "job-1")


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("512", 512),
        ("0", 0),
        ("512Mi", 512),
        ("512MiB", 512),
        ("16Gi", 16384),
        ("16 GiB", 16384),
        ("16G", 16384),
        ("1.5T", 1572864),
        ("0.5Gi", 512),
        ("65536Ki", 64),
        ("0.1Gi", 103),
        ("0.5Mi", 1),
        ("1K", 1),
        ("0.0001Gi", 1),
        ("0Gi", 0),
    ],
)
def test_amounts_of_memory(text: str, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    ["0.5", "512.0", "512B", "512b", "512i", "512m", "5MiiB", "1e3", "1_000", "-1", "٣", "9" * 16],
)
def test_what_is_no_amount_of_memory_is_refused_with_examples(text: str) -> None:
    with pytest.raises(WrongInput, match="is no amount of memory; right are 512 "):
        parse_memory_mib(text)


def test_what_is_not_nothing_never_becomes_nothing() -> None:
    assert [parse_cpu_milli(text) for text in ("0.0001", "0.1m", "0.2505", "0", "0m")] == [
        1,
        1,
        251,
        0,
        0,
    ]
    for text in ("0.0005", "0.2505", "0.9999", "1.5", "1e0", "1_0", "٣"):
        with pytest.raises(WrongInput, match="is no number of GPUs; right are 0, 1, 8"):
            parse_gpus(text)
    for text in ("1e3", "1_0", "٣", "5M", "m", "0x1"):
        with pytest.raises(WrongInput, match=r"is no number of CPUs; right are 4, 0\.5, 250m"):
            parse_cpu_milli(text)


def test_cpus_and_gpus() -> None:
    assert [parse_cpu_milli(text) for text in ("4", "0.5", "250m")] == [4000, 500, 250]
    assert [parse_gpus(text) for text in ("0", "8", "0.25")] == [(0, 1000), (8, 1000), (1, 250)]


def test_a_file_holds_one_request_an_array_or_one_a_line() -> None:
    assert read_requests(b'{\n "id": "a"\n}\n', "f") == [b'{\n "id": "a"\n}']
    assert read_requests(b'[{"id": "a"}, {"id": "b"}]', "f") == [b'{"id": "a"}', b'{"id": "b"}']
    assert read_requests(b'{"id": "a"}\n\n{"id": "b"}\n', "f") == [b'{"id": "a"}', b'{"id": "b"}']


@pytest.mark.parametrize("data", [b"id: a", b"{", b'{"id": "a"}\nnope', b"[{]"])
def test_a_file_that_is_no_json_is_told_by_name(data: bytes) -> None:
    with pytest.raises(WrongInput, match=r"^jobs\.yaml is not JSON: "):
        read_requests(data, "jobs.yaml")


def test_an_empty_file_is_told() -> None:
    with pytest.raises(WrongInput) as told:
        read_requests(b" \n", "-")
    assert str(told.value) == "- is empty; expected a job request as JSON"


@pytest.mark.parametrize("data", [b"[]", b" [ ]\n"])
def test_a_file_without_any_request_is_told(data: bytes) -> None:
    with pytest.raises(WrongInput) as told:
        read_requests(data, "-")
    assert str(told.value) == "- holds no job request: the array is empty"


def test_the_id_of_a_body_that_may_be_anything() -> None:
    assert id_of(msgspec.json.encode(JobRequest(id="a"))) == "a"
    assert id_of(b'{"id": "b", "pod_sets": 3, "no": "such field"}') == "b"
    assert id_of(b'{"id": 7}') == ""


def test_a_runtime_and_retries_are_named_by_flags() -> None:
    flags = {
        "runtime": "torch",
        "param": ("processes=2", "fast=true", 'name="3"', "who=me"),
        "retries": 3,
        "backoff": "1m",
        "no_retry_exit_code": (2, 3),
    }
    made = from_flags(flags, ["train.py"], "job-1")
    assert made.runtime == Runtime(
        name="torch", parameters={"processes": 2, "fast": True, "name": "3", "who": "me"}
    )
    assert (made.retries, made.backoff_s, made.no_retry_exit_codes) == (3, 60.0, (2, 3))
    with pytest.raises(WrongInput, match="--runtime"):
        from_flags({"param": ("a=1",)}, [], "job-1")
