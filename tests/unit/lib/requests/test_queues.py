"""What a queue does not take, whoever asks."""

import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.requests.queues import refusal_of


@pytest.mark.parametrize("via", ["direct", "worker", "hub"])
def test_a_number_of_pods_that_varies_is_not_for_queues_by_way_of_a_hub(via: Via) -> None:
    queues = {"team": QueueSetting(queue="team", via=via)}
    sets = PodSet(), PodSet(name="rest", count=4, max_count=8)
    request = JobRequest(id="train", queue="team", pod_sets=sets)
    why = "nothing: the queue 'team' goes by way of the hub's Kueue, which starts all pods"
    refused = Refusal(code="invalid", field="pod_sets[1].max_count", value="8", expected=why)
    assert refusal_of(queues, "acme", request, {}) == (refused if via == "hub" else None)


@pytest.mark.parametrize("via", ["direct", "worker"])
def test_a_deadline_is_not_for_queues_whose_jobs_a_clusters_kueue_starts(via: Via) -> None:
    queues = {"team": QueueSetting(queue="team", via=via)}
    request = JobRequest(id="train", queue="team", deadline_s=60.0)
    why = "nothing: the Kueue of a cluster starts the jobs of the queue 'team', at its time"
    refused = Refusal(code="invalid", field="deadline_s", value="60.0", expected=why)
    assert refusal_of(queues, "acme", request, {}) == (refused if via == "worker" else None)
