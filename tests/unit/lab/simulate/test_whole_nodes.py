"""On a fleet with room nobody waits: small pods stand together, whoever comes next."""

import pytest

from berthmaster.lab.simulate.compare import play
from berthmaster.lab.simulate.figures import summarize
from berthmaster.lab.simulate.model import told
from berthmaster.lab.simulate.traces import fleet_named, jobs_named


@pytest.mark.parametrize("seed", [1, 6])
def test_a_job_of_eight_gpus_finds_a_whole_node_on_a_fleet_that_is_hardly_used(seed: int) -> None:
    jobs = told(jobs_named("generated", seed=seed, limit=200, rate_per_s=0.05), "exact", seed)
    fleet = fleet_named("8x8", clusters=1, nodes=None)
    assert any(pods.gpus == 8 for job in jobs for pods in job.request.pod_sets)
    ours, theirs = (summarize(play(name, fleet, jobs)) for name in ("berthmaster", "bestfit"))
    assert ours.wait.longest_s <= theirs.wait.longest_s  # 0, but where the fleet is full
    assert seed != 1 or theirs.wait.longest_s == 0.0
