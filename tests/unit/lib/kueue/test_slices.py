"""How the Workloads of an elastic job stand together."""

import pytest

from berthmaster.lib.kube.objects import Condition
from berthmaster.lib.kueue.workloads import Slices, Workload, WorkloadStatus, slices_of


def one(*true: str, waits: str = "") -> Workload:
    told = tuple(Condition(type=each, status="True") for each in true)
    if waits:
        told += (Condition(type="QuotaReserved", status="False", message=waits),)
    return Workload(status=WorkloadStatus(conditions=told))


HAS = one("QuotaReserved", "Admitted")
EVICTED = one("QuotaReserved", "Admitted", "Evicted")
OVER = one("QuotaReserved", "Finished")
WAITS = one(waits="2 more needed")


@pytest.mark.parametrize(
    ("found", "slices"),
    [
        ((), None),
        ((OVER,), None),
        ((HAS,), Slices(have_quota=True, waits=False)),
        ((HAS, WAITS), Slices(have_quota=True, waits=True, words="2 more needed")),
        ((OVER, HAS), Slices(have_quota=True, waits=False)),
        ((HAS, one()), Slices(have_quota=True, waits=True)),
        ((EVICTED, WAITS), Slices(have_quota=False, waits=True, words="2 more needed")),
        ((OVER, WAITS), Slices(have_quota=False, waits=True, words="2 more needed")),
        ((EVICTED,), Slices(have_quota=False, waits=False)),
    ],
)
def test_slices(found: tuple[Workload, ...], slices: Slices | None) -> None:
    assert slices_of(found) == slices
