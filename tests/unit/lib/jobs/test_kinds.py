"""The kinds of job objects: which one a request becomes, and what all of them keep to."""

import pytest

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.ray_job import RAY_JOB
from berthmaster.lib.jobs.kinds.table import KINDS, kind_of
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.lifecycle.attempts import takes_pod_sets
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest, PodSet

TWO = (PodSet(name="a"), PodSet(name="b"))
USABLE = (JOB, JOB_SET, RAY_JOB, VOLCANO_JOB)
MAX_HOST_CHARS = 63


@pytest.mark.parametrize(
    ("sets", "via", "usable", "kind"),
    [
        ((PodSet(count=2),), "direct", USABLE, VOLCANO_JOB),
        (TWO, "direct", USABLE, VOLCANO_JOB),
        ((PodSet(count=2),), "direct", (JOB, JOB_SET), JOB),
        ((PodSet(count=2, min_count=1),), "direct", USABLE, JOB),
        ((PodSet(gpus=1, gpu_milli=500),), "direct", USABLE, JOB),
        ((PodSet(),), "worker", USABLE, JOB),
        (TWO, "worker", USABLE, JOB_SET),
        (TWO, "direct", (JOB,), JOB_SET),  # the executor refuses what its cluster does not serve
    ],
)
def test_kind_of_request_prefers_kind_with_substitute(
    sets: tuple[PodSet, ...], via: Via, usable: tuple[JobKind, ...], kind: JobKind
) -> None:
    assert kind_of(JobRequest(id="j", pod_sets=sets), via, usable) is kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_host_names_of_longest_object_fit(kind: JobKind) -> None:
    name = "n" * kind.max_name_chars
    assert len(f"{kind.host_prefix(name, 15)}4095") <= MAX_HOST_CHARS


@pytest.mark.parametrize("kind", [JOB_SET, VOLCANO_JOB], ids=lambda kind: kind.name)
def test_kind_of_several_pod_sets_is_one_that_clusters_are_filtered_by(kind: JobKind) -> None:
    assert kind.fits(JobRequest(id="j", pod_sets=TWO), "direct")
    assert takes_pod_sets(kind.name, TWO, "direct")
