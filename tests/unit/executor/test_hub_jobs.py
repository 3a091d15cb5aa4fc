"""Logs of what came by way of the hub: MultiKueue's copy tells whose it is, its pods do not."""

import asyncio
from typing import Any

import pytest

from berthmaster.executor.cluster_protocol import Attempt
from berthmaster.executor.hub_jobs import HubJobs
from berthmaster.executor.logs import NoLog
from berthmaster.executor.pod_logs import PodLogs
from tests.unit.executor.little_api import LittleApi
from tests.unit.kubernetes.stage import Lines

TRAIN = Attempt("acme", "train", 1)
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "hub"}


class OwnPods:
    """A cluster in which the executor itself has one attempt."""

    def holds(self, attempt: Attempt) -> bool:
        return attempt.id == "own"

    def pods_of(self, attempt: Attempt) -> list[Any]:
        return []


def job(name: str, uid: str, workload: str, **labels: str) -> dict[str, Any]:
    whose = {"berthmaster.io/tenant": "acme", "berthmaster.io/workload": workload}
    metadata = {"name": name, "namespace": "team", "uid": uid, "labels": whose | labels}
    return {"metadata": metadata}


def pod(name: str, of: str, owner: str, index: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"batch.kubernetes.io/job-name": of},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": of, "uid": owner}
            ],
        }
    }


def test_the_log_of_a_hubs_job_is_read_where_its_copy_runs_and_from_its_own_pods_alone() -> None:
    async def story() -> None:
        async with LittleApi() as api:
            await api.put("jobs", job("train-1", "u1", "train", **ORIGIN))
            await api.put("jobs", job("other", "u2", "other", **ORIGIN))
            ours = ORIGIN | {"berthmaster.io/executor": "e"}
            await api.put("jobs", job("mine", "u3", "direct", **ours))
            await api.put("pods", pod("b", "train-1", "u1", 0))
            await api.put("pods", pod("a", "train-1", "u1", 10))
            await api.put("pods", pod("c", "train-1", "u1", 2))
            await api.put("pods", pod("stranger", "train-1", "u9", 1))  # says so, and is not
            api.logs = {"b": b"2026-11-25T01:00:00Z begins\n"}
            client = await api.client(Lines())
            try:
                there = HubJobs(client, ("none", "team"))
                logs = PodLogs(client, OwnPods(), there)  # type: ignore[arg-type]
                assert await logs.pods(TRAIN) == ["b", "c", "a"]
                stream = await logs.open(TRAIN, "b", since_s=None, tail=None, follow=True)
                assert await stream.read() == b"2026-11-25T01:00:00Z begins\n"
                stream.close()
                with pytest.raises(NoLog, match="stranger is gone"):
                    await logs.open(TRAIN, "stranger", since_s=None, tail=None, follow=False)
                # Of other tenants, of ours, and of what is not here, there is none.
                for attempt in (
                    Attempt("evil", "train", 1),
                    Attempt("acme", "direct", 1),
                    Attempt("acme", "own", 1),
                    Attempt("acme", "none", 1),
                ):
                    assert await logs.pods(attempt) == []
                api.closed = {"none"}
                with pytest.raises(NoLog, match="cannot be looked for"):
                    await logs.pods(Attempt("acme", "later", 1))
            finally:
                await client.close()

    asyncio.run(story())
