"""Jobs of hubs and their copies: names, ends, and what may delete them too early."""

from typing import Any

import msgspec
import pytest

from berthmaster.lib.kueue.jobs import (
    HubJob,
    JobOfWorkload,
    deleted_after_s,
    early_words,
    read_workload_name,
)
from berthmaster.lib.kueue.names import MULTIKUEUE, PREBUILT


@pytest.mark.parametrize(
    ("workload", "found"),
    [
        ("job-train-3f9a1", JobOfWorkload("job", "train", True)),
        ("job-a-b-c-3f9a1", JobOfWorkload("job", "a-b-c", True)),
        ("jobset-train-3f9a1", JobOfWorkload("jobset", "train", True)),
        (f"job-{'a' * 53}-3f9a1", JobOfWorkload("job", "a" * 53, False)),
        (f"job-{'a' * 52}-3f9a1", JobOfWorkload("job", "a" * 52, True)),
        (f"rayjob-{'a' * 240}-3f9a1", JobOfWorkload("rayjob", "a" * 240, False)),
        ("train", None),
        ("-train-3f9a1", None),
        ("", None),
        ("job--3f9a1", None),
    ],
)
def test_read_workload_name_finds_kind_and_name(workload: str, found: JobOfWorkload | None) -> None:
    assert read_workload_name(workload) == found


def job(**spec: Any) -> HubJob:
    return msgspec.convert({"metadata": {"name": "train"}, "spec": spec}, HubJob)


@pytest.mark.parametrize(
    ("managed_by", "ttl_s", "risk_s"),
    [
        (MULTIKUEUE, 0, 0),
        (MULTIKUEUE, 899, 899),
        (MULTIKUEUE, 900, None),
        (MULTIKUEUE, None, None),
        (None, 0, None),
        ("example.com/other", 0, None),
    ],
)
def test_only_a_short_time_on_a_job_of_multikueue_is_a_risk(
    managed_by: str | None, ttl_s: int | None, risk_s: int | None
) -> None:
    found = job(managedBy=managed_by, ttlSecondsAfterFinished=ttl_s)
    assert deleted_after_s(found) == risk_s
    assert (f"ttlSecondsAfterFinished: {risk_s}," in early_words(found)) is (risk_s is not None)


@pytest.mark.parametrize(
    ("type", "ended", "succeeded"),
    [
        ("Complete", True, True),
        ("Completed", True, False),  # a JobSet
        ("Failed", True, False),
        ("SuccessCriteriaMet", False, False),
    ],
)
def test_a_job_has_succeeded_once_it_is_complete(type: str, ended: bool, succeeded: bool) -> None:
    for status in ("True", "False"):
        conditions = [{"type": type, "status": status}]
        found = msgspec.convert({"status": {"conditions": conditions}}, HubJob)
        true = status == "True"
        assert (found.ended, found.succeeded) == (ended and true, succeeded and true)


def test_a_copy_s_job_names_its_workload_in_an_annotation_or_an_older_label() -> None:
    for place in ("annotations", "labels"):
        found = msgspec.convert({"metadata": {place: {PREBUILT: "job-a-12345"}}}, HubJob)
        assert found.copy_name == "job-a-12345"
    assert HubJob().copy_name == ""
