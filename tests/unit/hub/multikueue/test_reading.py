"""A Kueue Workload as a request: what is asked for, by which id, and what is odd in it."""

import msgspec
import pytest

from berthmaster.hub.multikueue.core.known.requests import origin_of, read_asks, read_request
from berthmaster.lib.kube.objects import LabelRequirement
from berthmaster.lib.kueue.asks import asks_of
from berthmaster.lib.kueue.podsets.reading import tenant_of, workload_id
from berthmaster.lib.kueue.podsets.templates import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    PodToleration,
    Quantity,
    Resources,
    TemplateSet,
    Term,
)
from berthmaster.lib.kueue.workloads import (
    Admission,
    KueueWorkload,
    PodSetAssignment,
    WorkloadStatus,
)
from berthmaster.lib.messages.workload import HubObject, JobRequest, PodSet, Toleration
from tests.unit.hub.multikueue.hub_objects import pods, workload


def asked(*pod_sets: object, **how: object) -> JobRequest:
    read = read_request(workload(pod_sets=pod_sets, **how))  # type: ignore[arg-type]
    assert read.problems == ()
    return read.request


def test_a_plain_job_is_one_pod_set_with_what_its_container_asks_for() -> None:
    assert asked(pods(count=2, gpus=4), priority=7) == JobRequest(
        id="job-train-0000021e",
        queue="main",
        priority=7,
        pod_sets=(
            PodSet(
                name="main",
                count=2,
                cpu_milli=1000,
                memory_mib=1024,
                gpus=4,
                gpu_resource="nvidia.com/gpu",
            ),
        ),
        max_evictions=1000,
    )


def test_ids_are_the_same_for_one_object_and_another_for_its_successor() -> None:
    assert workload_id("job-train-ab12c", "0fe8a1b2-77aa") == "job-train-ab12c-0fe8a1b2"
    assert workload_id("job-train-ab12c", "99999999-77aa") == "job-train-ab12c-99999999"


@pytest.mark.parametrize(
    ("name", "uid", "expected"),
    [
        ("a" * 253, "0fe8a1b2-7", "a" * 43 + "-0fe8a1b2"),
        ("my.job.v2", "0fe8a1b2-7", "my-job-v2-0fe8a1b2"),
        ("a" * 42 + "-b", "0fe8a1b2-7", "a" * 42 + "-0fe8a1b2"),
        ("...", "", "w-0"),
    ],
)
def test_every_name_that_kubernetes_allows_becomes_an_id_of_ours(
    name: str, uid: str, expected: str
) -> None:
    made = workload_id(name, uid)
    assert made == expected
    assert msgspec.convert({"id": made}, JobRequest).id == made


def test_a_namespace_is_its_own_tenant_unless_the_setting_says_whose_it_is() -> None:
    assert tenant_of("team-a", {}) == "team-a"
    assert tenant_of("team-a", {"team-a": "acme"}) == "acme"


def test_all_containers_count_and_the_greediest_init_container_if_it_asks_for_more() -> None:
    def container(cpu: str, memory: str) -> Container:
        return Container(resources=Resources(requests={"cpu": cpu, "memory": memory}))

    both = (container("500m", "1Gi"), container("1", "512Mi"))
    first = (container("100m", "4Gi"),)
    request = asked(_pod(both, first))
    assert (request.pod_sets[0].cpu_milli, request.pod_sets[0].memory_mib) == (1500, 4096)


def _pod(containers: tuple[Container, ...], first: tuple[Container, ...] = ()) -> object:
    base = pods(gpus=0)
    assert base.template is not None
    assert base.template.spec is not None
    spec = msgspec.structs.replace(
        base.template.spec, containers=containers, init_containers=first or None
    )
    template = msgspec.structs.replace(base.template, spec=spec)
    return msgspec.structs.replace(base, template=template)


def test_what_is_only_limited_is_asked_for() -> None:
    limited = Container(resources=Resources(limits={"nvidia.com/gpu": 2, "cpu": "2"}))
    request = asked(_pod((limited,)))
    assert (request.pod_sets[0].gpus, request.pod_sets[0].cpu_milli) == (2, 2000)


def test_products_are_models_and_other_labels_stay_labels() -> None:
    one = asked(pods(node_selector={"nvidia.com/gpu.product": "T4", "zone": "a"}))
    assert (one.pod_sets[0].gpu_models, one.pod_sets[0].node_labels) == (("=T4",), {"zone": "a"})

    def needs(*terms: Term) -> Affinity:
        selector = NodeSelector(node_selector_terms=terms)
        return Affinity(
            node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
        )

    def product(*values: str) -> LabelRequirement:
        return LabelRequirement(key="nvidia.com/gpu.product", operator="In", values=values)

    zone = LabelRequirement(key="zone", operator="In", values=("b",))
    two = asked(pods(affinity=needs(Term(match_expressions=(product("T4", "L4"), zone)))))
    assert (two.pod_sets[0].gpu_models, two.pod_sets[0].node_labels) == (
        ("=L4", "=T4"),
        {"zone": "b"},
    )
    # Terms are alternatives: only what all of them name is certain.
    three = asked(
        pods(
            affinity=needs(
                Term(match_expressions=(product("T4"), zone)),
                Term(match_expressions=(product("L4"),)),
            )
        )
    )
    assert (three.pod_sets[0].gpu_models, three.pod_sets[0].node_labels) == (("=L4", "=T4"), {})


def test_tolerations_come_along() -> None:
    request = asked(
        pods(
            tolerations=(
                PodToleration(key="gpu", operator="Exists"),
                PodToleration(key="a", value="b", effect="NoExecute"),
            )
        )
    )
    assert request.pod_sets[0].tolerations == (
        Toleration(key="gpu", operator="Exists"),
        Toleration(key="a", value="b", effect="NoExecute"),
    )


@pytest.mark.parametrize(
    ("pod_sets", "problem"),
    [
        ([pods(count=5000)], "pod set main: 5000 pods, counted as 4096"),
        ([pods(gpus=100)], "pod set main: 100 GPUs a pod, counted as 64"),
        ([pods(gpus="-1")], "pod set main: nvidia.com/gpu: '-1' is negative"),
        ([pods(gpus="lots")], "pod set main: nvidia.com/gpu: 'lots' is no quantity"),
        ([pods(name=f"s{n}") for n in range(18)], "18 pod sets: only the first 16 are looked at"),
    ],
)
def test_what_is_absurd_is_named_and_bounded(pod_sets: list[object], problem: str) -> None:
    read = read_request(workload(pod_sets=pod_sets))  # type: ignore[arg-type]
    assert any(text.startswith(problem) for text in read.problems), read.problems
    assert msgspec.convert(msgspec.to_builtins(read.request), JobRequest) == read.request


def test_pod_sets_of_no_pods_ask_for_nothing() -> None:
    request = asked(pods(), pods(count=0, name="later", gpus=8))
    assert [p.name for p in request.pod_sets] == ["main"]


def test_a_workload_without_pod_sets_is_odd_and_still_a_request() -> None:
    bare = msgspec.json.decode(b'{"metadata": {"name": "x", "uid": "1"}}', type=KueueWorkload)
    read = read_request(bare)
    assert read.problems == ("it has no pod sets", "queue name '' is none")
    assert read.request.pod_sets == (PodSet(cpu_milli=0, memory_mib=0),)


def test_nulls_and_numbers_where_kubernetes_allows_them() -> None:
    body = b"""{"metadata": {"name": "x", "namespace": "n", "uid": "12345678"},
      "spec": {"queueName": "q", "active": null, "podSets": [{"name": "main", "count": 1,
        "template": {"spec": {"containers": [{"name": "c", "resources": {"requests":
          {"cpu": 1, "memory": 1048576, "nvidia.com/gpu": 1.0}}}], "nodeSelector": null}}}]},
      "status": null}"""
    found = msgspec.json.decode(body, type=KueueWorkload)
    assert found.active
    assert found.nominated == ()
    read = read_request(found)
    assert read.problems == ()
    pod = read.request.pod_sets[0]
    assert (pod.cpu_milli, pod.memory_mib, pod.gpus) == (1000, 1, 1)


def test_where_it_comes_from_is_told_with_the_job_that_people_know() -> None:
    made = workload("train")
    assert origin_of(made, "hub-queue", "hub-one") == HubObject(
        namespace="team",
        name="job-train",
        uid=made.metadata.uid,
        owner="Job/train",
        local_queue="main",
        cluster_queue="hub-queue",
        hub="hub-one",
    )


def test_gpus_are_read_by_the_resource_that_they_are_asked_for_as() -> None:
    def read(*sets: TemplateSet) -> tuple[int, int, str, str]:
        one = asked(*sets).pod_sets[0]
        return one.gpus, one.gpu_milli, one.gpu_resource, one.mig_profile

    assert read(pods(gpus=2)) == (2, 1000, "nvidia.com/gpu", "")
    assert read(pods(gpus=2, resource="amd.com/gpu")) == (2, 1000, "amd.com/gpu", "")
    slice_of = "nvidia.com/mig-3g.40gb"
    assert read(pods(resource=slice_of)) == (1, 428, "", "3g.40gb")
    assert read(pods(gpus=2, resource="gpu.intel.com/xe")) == (2, 1000, "gpu.intel.com/xe", "")
    assert asks_of(asked(pods(resource=slice_of)))[0].ways[0][slice_of] == 1


def counted(**usage: dict[str, Quantity]) -> WorkloadStatus:
    assignments = tuple(PodSetAssignment(name=n, resource_usage=u) for n, u in usage.items())
    return WorkloadStatus(admission=Admission(pod_set_assignments=assignments))


def test_of_quota_is_asked_what_the_hubs_kueue_counts_by_its_very_names() -> None:
    made = workload(pod_sets=(pods(name="driver", gpus=0), pods(name="workers", count=2, gpus=4)))
    request = read_request(made).request
    # Before it has counted, what the request says: of all pods.
    assert [ask.ways for ask in read_asks(made, request)] == [
        ({"cpu": 1000, "memory": 1024},),
        ({"cpu": 2000, "memory": 2048, "nvidia.com/gpu": 8},),
    ]
    status = counted(
        driver={"cpu": "1100m", "memory": "1Gi", "pods": "1"},
        workers={"cpu": 2, "memory": "2148532225", "nvidia.com/mig-3g.40gb": "8", "pods": 2},
    )
    asks = read_asks(msgspec.structs.replace(made, status=status), request)
    assert [ask.pods for ask in asks] == list(request.pod_sets)
    assert [ask.ways for ask in asks] == [
        ({"cpu": 1100, "memory": 1024},),
        ({"cpu": 2000, "memory": 2050, "nvidia.com/mig-3g.40gb": 8},),
    ]


@pytest.mark.parametrize(
    "status",
    [
        None,
        WorkloadStatus(),
        counted(),
        counted(driver={"cpu": "1"}),  # the other pod set is missing
        counted(driver={"cpu": "1"}, workers={"cpu": "much"}),
    ],
)
def test_of_quota_that_is_not_counted_in_full_the_request_tells(
    status: WorkloadStatus | None,
) -> None:
    made = workload(pod_sets=(pods(name="driver"), pods(name="workers", count=2)))
    request = read_request(made).request
    found = read_asks(msgspec.structs.replace(made, status=status), request)
    assert found == asks_of(request)
