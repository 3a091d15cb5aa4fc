"""ClusterClaims: few, and only those in haste that become nothing."""

from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import view
from berthmaster.worker.claims.core.claims import NAMES
from berthmaster.worker.claims.core.values import gap, values
from tests.unit.hub.ocm.builders import score


def test_a_cluster_claims_little_of_itself() -> None:
    found = score(free=12.7, gangs={"Tesla T4": 9, "NVIDIA A100": 3})
    assert values(view(found, silent_s=0)) == {
        "score-freshness.berthmaster.io": "fresh",
        "gpu-free.berthmaster.io": "12",
        "gpu-largest-gang.berthmaster.io": "9",
        "gpu-largest-gang-model.berthmaster.io": "Tesla-T4",
    }
    assert values(view(None, silent_s=30)) == {
        "score-freshness.berthmaster.io": "noreport",
        "gpu-free.berthmaster.io": "0",
        "gpu-largest-gang.berthmaster.io": "0",
        "gpu-largest-gang-model.berthmaster.io": "unknown",
    }
    assert set(NAMES) == set(values(view(None, silent_s=30)))
    assert len(NAMES) <= 5  # an agent copies 20, others' included


def test_a_claim_hurries_only_when_something_becomes_nothing_or_the_reverse() -> None:
    assert gap("12", "12") == 0
    assert gap("12", "3") == SMALL
    assert gap("12", "0") == gap("0", "12") == LARGE
    assert gap("fresh", "stale") == gap("stale", "fresh") == LARGE
