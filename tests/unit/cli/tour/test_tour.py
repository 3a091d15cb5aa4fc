from io import StringIO

import pytest
from rich.console import Console

from berthmaster.cli.tour.commands import (
    Sent,
    TourReport,
    goes_to_most_free,
    has_labels,
    job_of,
    screen,
)
from berthmaster.cli.up.commands import labels_of
from berthmaster.lib.supervisor.plan import (
    KubeTarget,
    PlanError,
    UpOptions,
    entries,
    worker_entries,
)
from tests.unit.lib.supervisor.test_plan import HERE


def test_a_job_is_right_where_no_other_cluster_had_more() -> None:
    free = {"a": 4.0, "b": 4.0, "c": 1.0}
    assert [goes_to_most_free(name, free) for name in ("a", "b", "c", "d")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not goes_to_most_free("a", {})


def test_a_job_is_right_where_all_labels_are() -> None:
    wanted = {"accelerator": "t4"}
    assert has_labels({"accelerator": "t4", "zone": "a"}, wanted)
    assert not has_labels({"accelerator": "a100"}, wanted)
    assert not has_labels({}, wanted)


def test_the_tours_job_is_one_that_multikueue_takes() -> None:
    job = job_of("tour-1", "ml", "main", 2, {"a": "b"})
    assert job["metadata"] == {
        "name": "tour-1",
        "namespace": "ml",
        "labels": {"kueue.x-k8s.io/queue-name": "main"},
    }
    assert (job["spec"]["suspend"], job["spec"]["managedBy"]) == (
        True,
        "kueue.x-k8s.io/multikueue",
    )
    template = job["spec"]["template"]
    assert template["metadata"] == {"annotations": {"a": "b"}}
    [container] = template["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "100m", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }


def test_the_report_says_of_each_job_whether_it_went_where_it_should() -> None:
    sent = [
        Sent(job="t-1", cluster="b", free_gpus={"a": 1.0, "b": 2.5}, right=True),
        Sent(job="t-2", cluster="a", free_gpus={"a": 1.0, "b": 1.5}, right=False),
    ]
    console = Console(file=StringIO(), width=80)
    console.print(screen(TourReport(story="gpus", jobs=sent, right=False)))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines == [
        "JOB  CLUSTER             FREE GPUS THEN",
        "t-1  b        as said    b 2.5, a 1",
        "t-2  a        elsewhere  b 1.5, a 1",
        "",
        "Not every job did.",
    ]


def test_workers_have_the_labels_that_they_are_given() -> None:
    found = labels_of(["b:accelerator=t4", "b:zone=eu", "arn:x:k=v"])
    assert found == {"b": ("accelerator=t4", "zone=eu"), "arn:x": ("k=v",)}
    worker = KubeTarget(name="b", context="b")
    [told] = worker_entries(worker, (), ("inventory",), labels=found["b"])
    assert told.flags == (
        *("--cluster", "b", "--labels", "accelerator=t4,zone=eu", "--context", "b"),
    )
    with pytest.raises(PlanError, match="--label arn:x:…: no worker has this name"):
        entries(UpOptions(folder=HERE, services=("inventory",), workers=(worker,), labels=found))


@pytest.mark.parametrize("text", ["k=v", ":k=v", "b:k", "b:=v", "b:k=v,w"])
def test_a_label_that_is_none_is_told(text: str) -> None:
    with pytest.raises(PlanError, match="right is WORKER:KEY=VALUE"):
        labels_of([text])
