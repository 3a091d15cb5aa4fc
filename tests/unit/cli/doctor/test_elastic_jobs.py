"""Whether a worker's Kueue lets numbers of pods change, by its version and its gates."""

import pytest

from tests.unit.cli.doctor.surveys import finding, of_worker, wrong

GATE = "ElasticJobsViaWorkloadSlices"
JOBS = "jobs of one pod set with min_count or max_count"


@pytest.mark.parametrize(
    ("version", "gates", "what"),
    [
        ("0.19.2", {}, f"{JOBS} shrink and grow"),
        ("0.17.3", {GATE: True}, f"{JOBS} shrink and grow"),
        ("0.17.3", {}, f"{JOBS} keep the number that they start with: the gate {GATE} is off"),
        (
            "0.19.2",
            {GATE: False},
            f"{JOBS} keep the number that they start with: the gate {GATE} is off",
        ),
        ("0.12.0", {}, f"{JOBS} keep the number that they start with: the gate {GATE} is off"),
        (
            "0.19.2",
            None,
            f"{JOBS} shrink and grow, if its Kueue has elastic jobs (gate {GATE}, on from 0.18)",
        ),
    ],
)
def test_it_is_told(version: str, gates: dict[str, bool] | None, what: str) -> None:
    image = f"registry.k8s.io/kueue/kueue:v{version}"
    report = of_worker(kueue_image=image, gates=gates)
    found = finding(report, JOBS)
    assert found.what == what
    is_off = "keep" in what
    assert (found.level == "note", (found.level, "berlin", what) in wrong(report)) == (
        is_off,
        is_off,
    )
    if is_off:
        assert (f"{GATE}: true" in found.change) is (version != "0.12.0")
