"""The runtime `ray` where KubeRay is served: a RayJob from our own template, and what it says."""

import shlex
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lib.jobs.gangs import GROUP, Gangs
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.ray_job import RAY_JOB, made_as
from berthmaster.lib.jobs.kinds.table import kind_of
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.runtimes import ObjectKey, Runtime, RuntimeVolume
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsGone,
    PodsRefused,
    PodsRunning,
    StopPods,
)
from berthmaster.worker.executor.core.manifest import Style, document, object_name
from tests.bus.tools import story
from tests.support.patience import hang_s, until
from tests.unit.worker.executor.little_api import LittleApi
from tests.unit.worker.executor.test_runtime import HERE, NAME, TRAIN, Play, playing

KUBERAY = Style(kinds=(JOB, JOB_SET, RAY_JOB))


def ray_request(*sets: PodSet, **fields: Any) -> JobRequest:
    """As the gateway fills it in, with a volume and a Secret of the platform team's own."""
    asked = JobRequest(
        id="train",
        pod_sets=sets or (PodSet(count=3, gpus=1),),
        run=RunSpec(image="ray:1", command=("python", "train.py"), args=("--name", "it is")),
        runtime=Runtime(name="ray"),
        **fields,
    )
    ray = BUILT_IN["ray"]
    template = replace(
        ray.template,
        volumes=(RuntimeVolume(name="data", mount_path="/data", claim="sets"),),
        secret_env={"KEY": ObjectKey(name="wandb", key="key")},
    )
    full = filled_in(asked, "acme", {"ray": replace(ray, template=template)})
    assert isinstance(full, JobRequest)
    return full


def order(request: JobRequest, target: Target = HERE, **fields: Any) -> CreatePods:
    pods = tuple(
        PodBinding(pod=f"{each.name}-{n}", node=f"n{n}")
        for each in request.pod_sets
        for n in range(each.count)
    )
    return CreatePods(
        Attempt("acme", request.id, 1), NAME, pods, request, None, target=target, **fields
    )


def kind_made(one: CreatePods, style: Style) -> JobKind:
    return kind_of(one.request, one.target.via, style.kinds)


def groups_of(made: Any) -> list[Any]:
    cluster = made["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_each_pod_is_a_group_made_from_the_same_template_as_any_other_of_ours() -> None:
    one = order(ray_request())
    made = document(one, 60, Offers(), KUBERAY)
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", "RayJob")
    spec = made["spec"]
    assert {key: spec[key] for key in spec if key not in ("entrypoint", "rayClusterSpec")} == {
        "submissionMode": "HTTPMode",
        "backoffLimit": 0,
        "shutdownAfterJobFinishes": True,
        "activeDeadlineSeconds": 60,
    }
    groups = groups_of(made)
    assert [group.get("groupName") for group in groups] == [None, "p1", "p2"]
    templates = [group["template"] for group in groups]
    assert [each["metadata"]["labels"][labels.POD] for each in templates] == [
        "main-0",
        "main-1",
        "main-2",
    ]
    ours = document(one, None, Offers(), Style())["spec"]["template"]
    for each in templates:
        assert each["metadata"]["labels"].items() >= ours["metadata"]["labels"].items()
        [main], [same] = each["spec"]["containers"], ours["spec"]["containers"]
        assert "command" not in main  # Ray itself, which KubeRay puts in
        assert "args" not in main
        for field in ("image", "resources", "securityContext", "volumeMounts"):
            assert main[field] == same[field]
        assert {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}} in (
            main["env"]
        )
        beside = [key for key in ours["spec"] if key not in ("containers", "subdomain")]
        assert {key: each["spec"][key] for key in beside} == {k: ours["spec"][k] for k in beside}
        assert "subdomain" not in each["spec"]


def test_what_the_command_writes_goes_to_the_log_of_the_heads_container() -> None:
    made = document(order(ray_request()), None, Offers(), KUBERAY)
    *shell, zero, python, script, flag, name = shlex.split(made["spec"]["entrypoint"])
    assert shell[:2] == ["/bin/sh", "-c"]
    assert (zero, python, script, flag, name) == ("ray", "python", "train.py", "--name", "it is")
    # Where the log of process 1 cannot be written, to wherever Ray keeps it; its exit code stays.
    code = "import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"
    away = shell[2].replace("/proc/1/fd/1", "/nowhere/at/all")
    done = subprocess.run(
        ["/bin/sh", "-c", away, "ray", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=hang_s(),
        check=False,
    )
    assert (done.returncode, sorted(done.stdout.split())) == (3, [b"a", b"b"])


def test_a_rayjob_is_made_where_kuberay_is_served_and_can_do_it() -> None:
    request = ray_request()
    assert kind_made(order(request), KUBERAY) is RAY_JOB
    assert made_as(request, "direct", ("Job", "RayJob")) == "a RayJob: KubeRay is served"
    assert kind_made(order(request), Style()) is JOB
    assert made_as(request, "direct", ("Job",)) == "pods of ours: no KubeRay there"
    queued = Target(namespace="team", via="worker", local_queue="q")
    assert kind_made(order(request, queued), KUBERAY) is JOB
    assert made_as(request, "worker", ("RayJob",)).startswith("pods of ours, as its queue")
    for pods in (PodSet(count=101), PodSet(count=2, max_count=3)):
        assert kind_made(order(ray_request(pods)), KUBERAY) is JOB
    plain = JobRequest(id="train", run=RunSpec(image="x"))
    assert kind_made(order(plain), KUBERAY) is JOB
    assert made_as(plain, "direct", ("RayJob",)) == ""


@pytest.mark.parametrize(("gangs", "group"), [(Gangs.KUBERNETES, ""), (Gangs.VOLCANO, "volcano:3")])
def test_gangs_are_those_that_kuberays_definition_has_fields_for(gangs: Gangs, group: str) -> None:
    style = KUBERAY._replace(gangs=gangs, volcano_queue="")
    made = document(order(ray_request()), None, Offers(), style)
    assert made["metadata"]["annotations"].get(GROUP, "").startswith(group)
    assert (GROUP in made["metadata"]["annotations"]) == bool(group)
    assert all("schedulingGroup" not in each["template"]["spec"] for each in groups_of(made))


def test_its_name_is_one_that_services_can_have() -> None:
    long = object_name(Attempt("acme", "2026-" + "x" * 60, 1), RAY_JOB)
    assert long.startswith("j-2026-")
    assert len(long) <= RAY_JOB.max_name_chars
    assert object_name(Attempt("acme", "train", 1), RAY_JOB).startswith("train-1-")


# What becomes of it


async def made_by(api: LittleApi, play: Play, pods: int = 2) -> str:
    """Its name, when KubeRay has made its pods and they run."""
    request = ray_request(PodSet(count=pods, gpus=1))
    play.runtime.perform(order(request))
    await until(lambda: api.all("rayjobs"))
    [job] = api.all("rayjobs")
    for number, group in enumerate(groups_of(job)):
        meta = group["template"]["metadata"]
        pod = {"name": f"pod-{number}", "namespace": "team", "uid": f"u{number}", **meta}
        await api.put(
            "pods",
            {"metadata": pod, "spec": {"nodeName": f"n{number}"}, "status": {"phase": "Running"}},
        )
    name: str = job["metadata"]["name"]
    await api.change("rayjobs", name, status={"jobDeploymentStatus": "Running"})
    running = await play.hears(PodsRunning)
    assert [(each.pod, each.node) for each in running.pods] == [("main-0", "n0"), ("main-1", "n1")]
    return name


async def end_pods(api: LittleApi) -> None:
    for pod in api.all("pods"):
        await api.remove("pods", pod["metadata"]["name"])


@story
async def test_it_is_over_when_ray_says_so_and_no_pod_is_left() -> None:
    async with LittleApi() as api, playing(api, kinds=(JOB, RAY_JOB), style=KUBERAY) as play:
        name = await made_by(api, play)
        over = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        await api.change("rayjobs", name, status=over)
        assert not any(isinstance(each, PodsCompleted) for each in play.told)
        await end_pods(api)
        assert await play.hears(PodsCompleted) == PodsCompleted(TRAIN)


@story
async def test_whose_fault_an_end_is_goes_by_what_kuberay_says() -> None:
    for status, kind, words, fault in (
        (
            {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}
            | {"message": "Job entrypoint command failed with exit code 3"},
            PodsFailed,
            "exit code 3",
            "exit",
        ),
        (
            {"jobDeploymentStatus": "ValidationFailed", "message": "name is too long"},
            PodsRefused,
            "KubeRay: ValidationFailed: name is too long",
            "not_started",
        ),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, PodsExpired, "", ""),
    ):
        async with LittleApi() as api, playing(api, kinds=(JOB, RAY_JOB), style=KUBERAY) as play:
            name = await made_by(api, play)
            await end_pods(api)
            await api.change("rayjobs", name, status=status)
            told = await play.hears(kind)
            assert words in getattr(told, "reason", "")
            assert getattr(told, "fault", "") == fault
            assert getattr(told, "exit_code", None) == (3 if kind is PodsFailed else None)


@story
async def test_one_pod_that_is_taken_away_gives_all_of_it_back_though_kuberay_would_go_on() -> None:
    async with LittleApi() as api, playing(api, kinds=(JOB, RAY_JOB), style=KUBERAY) as play:
        await made_by(api, play)
        taken = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        await api.change("pods", "pod-1", status={"conditions": [taken]})
        refused = await play.hears(PodsRefused)
        assert refused.fault == "evicted"
        assert refused.reason.startswith("pod main-1: EvictionByEvictionAPI")


@story
async def test_it_is_stopped_by_suspending_it_and_deleted_when_that_is_told() -> None:
    async with LittleApi() as api, playing(api, kinds=(JOB, RAY_JOB), style=KUBERAY) as play:
        name = await made_by(api, play)
        play.runtime.perform(StopPods(TRAIN, "typo"))
        await until(lambda: api.all("rayjobs")[0]["spec"].get("suspend"))
        await api.change("rayjobs", name, status={"jobDeploymentStatus": "Suspending"})
        await end_pods(api)
        assert not any(isinstance(each, PodsGone) for each in play.told)
        await api.change("rayjobs", name, status={"jobDeploymentStatus": "Suspended"})
        assert (await play.hears(PodsGone)).reason == "typo"
