"""The table of what Kueue lets in, held against the Kueue that runs here: the real one where
KUEUE_BIN and KUEUE_CRDS are set, otherwise the stand-in.

The same rows are what our own arithmetic is held to (tests/unit/kueue/test_quota.py). All of them
run side by side in one worker: each has queues, flavors and cohorts of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.controlplane.api import documents
from tests.controlplane.kueue.cleaning import patiently, remove_all
from tests.controlplane.kueue.managers import Options, manager
from tests.controlplane.kueue.objects import condition_of, is_true
from tests.controlplane.kueue.rows import NEVER, ROWS, WAITS, Documents, Row
from tests.controlplane.kueue.setup import API, HERE, SYSTEM
from tests.controlplane.plane import Plane
from tests.controlplane.planes import Planes
from tests.support.patience import wait_until

AT_ONCE = 8
ACTIVE, RESERVED = "Active", "QuotaReserved"
Json = dict[str, Any]


@pytest.fixture
def worker(planes: Planes, namespace: str) -> Iterator[Plane]:
    """A cluster whose Kueue runs and has no queues yet."""
    plane = planes["worker-1"]
    for document in documents(HERE / "policies.yaml"):
        plane.api.apply(document)
    plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    running = manager(plane, Options())
    running.launch()
    yield plane
    running.kill()
    patiently(lambda: clean(plane, namespace))


def clean(plane: Plane, namespace: str) -> None:
    for plural in ("workloads", "localqueues"):
        remove_all(plane.api, f"{API}/namespaces/{namespace}/{plural}", "")
    for plural in ("clusterqueues", "cohorts", "resourceflavors"):
        remove_all(plane.api, f"{API}/{plural}", namespace)
    for document in documents(HERE / "policies.yaml"):
        plane.api.delete(plane.api.path_of(document))


class Table:
    """All rows in one cluster."""

    def __init__(self, plane: Plane, namespace: str, rows: Sequence[Row]) -> None:
        self._api = plane.api
        self._namespace = namespace
        self.rows = {
            row.what: Documents(row, f"{namespace}-{number}-", namespace)
            for number, row in enumerate(rows)
        }

    def make(self, kind: Callable[[Documents], Iterator[Json]]) -> list[str]:
        """The names of what was made."""
        made = [document for row in self.rows.values() for document in kind(row)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(self._api.apply, made))
        return [document["metadata"]["name"] for document in made]

    def queues_not_active(self, names: list[str]) -> list[str]:
        found = {one["metadata"]["name"]: one for one in self._api.items(f"{API}/clusterqueues")}
        return [name for name in names if not is_true(found.get(name, {}), ACTIVE)]

    def undecided(self, names: list[str]) -> list[str]:
        """Workloads of which Kueue has not said whether they get quota."""
        found = self._workloads()
        return [name for name in names if condition_of(found[name], RESERVED) is None]

    def without_quota(self, names: list[str]) -> list[str]:
        found = self._workloads()
        return [name for name in names if not is_true(found[name], RESERVED)]

    def became(self) -> dict[str, object]:
        """By row: what became of its request."""
        found = self._workloads()
        return {
            what: self._outcome(found[row.name("asked")], row) for what, row in self.rows.items()
        }

    def _outcome(self, workload: Json, row: Documents) -> object:
        condition = condition_of(workload, RESERVED)
        if condition is None:
            return "nothing yet"
        if condition["status"] != "True":
            # What could fit if less were used is short of unused quota.
            said = condition["message"]
            return (WAITS if "insufficient unused quota" in said else NEVER), said
        assigned = workload["status"]["admission"]["podSetAssignments"]
        return [
            {name: flavor.removeprefix(row.name("")) for name, flavor in one["flavors"].items()}
            for one in assigned
        ]

    def _workloads(self) -> Mapping[str, Json]:
        items = self._api.items(f"{API}/namespaces/{self._namespace}/workloads")
        return {one["metadata"]["name"]: one for one in items}


def test_what_kueue_lets_in(worker: Plane, namespace: str) -> None:
    table = Table(worker, namespace, ROWS)
    table.make(Documents.flavors)
    table.make(Documents.cohorts)
    queues = table.make(Documents.queues)
    table.make(Documents.local_queues)
    wait_until(lambda: not table.queues_not_active(queues), "queues", poll_s=0.2)

    running = table.make(Documents.running)
    wait_until(lambda: not table.without_quota(running), "what runs", poll_s=0.2)
    coming = table.make(Documents.coming)
    wait_until(lambda: not table.undecided(coming), "what is on its way", poll_s=0.2)

    asked = table.make(lambda row: iter([row.asked()]))
    wait_until(lambda: not table.undecided(asked), "an answer to all", poll_s=0.2)
    other: dict[str, object] = {}
    for what, became in table.became().items():
        then = table.rows[what].row.then
        if (became[0] if isinstance(became, tuple) else became) != then:
            other[what] = (then, became)
    assert other == {}
