"""The table of what Kueue lets in, held against Kueue.

The same rows are what our own arithmetic is held to (tests/unit/lib/kueue/test_quota.py). All of
them run side by side in one worker: each has queues, flavors and cohorts of its own. Beside them
stand clusters that are drawn, of which Kueue and our arithmetic have to say the same.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.kueue.cleaning import patiently, remove_all
from berthmaster.lab.controlplane.kueue.managers import Options, manager
from berthmaster.lab.controlplane.kueue.objects import condition_of, is_true
from berthmaster.lab.controlplane.kueue.setup import API, HERE, SYSTEM
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.controlplane.kueue.rows import (
    GPU,
    NEVER,
    ROWS,
    TAINT,
    WAITS,
    Cohort,
    Documents,
    Flavor,
    Pods,
    Queue,
    Row,
    only,
    quota,
)
from tests.support.patience import Hung, wait_until
from tests.unit.lib.kueue.test_quota import answer_to, outcome, reports_of

AT_ONCE = 8
NOT_NOW = "not now"  # it waits, or it never fits
CLUSTERS = 20  # that are drawn
FLAVORS = ("a", "b", "c")
COHORTS = ("north", "south", "all")
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


def let_in(
    worker: Plane, namespace: str, rows: Sequence[Row], wanted: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """By row whose request Kueue judges otherwise than is wanted: what is wanted, what it says.

    Kueue may say no at first and try the next flavor in its next round, so its last word counts.
    """
    table = Table(worker, namespace, rows)
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

    def other() -> dict[str, tuple[object, object]]:
        return {
            what: (wanted[what], found)
            for what, found in table.became().items()
            if (found[0] if isinstance(found, tuple) else found) != wanted[what]
            # Kueue's words of what waits and what never fits are of single flavors.
            and not (wanted[what] == NOT_NOW and isinstance(found, tuple))
        }

    with contextlib.suppress(Hung):
        wait_until(lambda: not other(), "the last word", moves=lambda: sorted(other()), poll_s=0.5)
    return other()


def test_what_kueue_lets_in(worker: Plane, namespace: str) -> None:
    assert let_in(worker, namespace, ROWS, {row.what: row.then for row in ROWS}) == {}


# Any cluster


def drawn(seed: int) -> Row:
    """A cluster that nobody has thought of. What runs there stays within its queue's own quota."""
    dice = random.Random(seed)

    def quotas(*, is_limited: bool) -> list[dict[str, dict[str, str | Json]]]:
        def one() -> Json:
            nominal = dice.randint(0, 6)
            lend, borrow = dice.randint(0, nominal), dice.randint(0, 6)
            return quota(
                str(nominal),
                borrow=str(borrow) if is_limited and dice.random() < 0.5 else None,
                lend=str(lend) if is_limited and dice.random() < 0.5 else None,
            )

        names = dice.sample(FLAVORS, dice.randint(1, len(FLAVORS)))
        if len(names) > 1 and dice.random() < 0.5:
            return [{names[0]: {"cpu": one()}}, {name: {GPU: one()} for name in names[1:]}]
        return [{name: {"cpu": one(), GPU: one()} for name in names}]

    def queue() -> Queue:
        cohort = dice.choice(("", *COHORTS))
        granted = quotas(is_limited=bool(cohort))
        used: dict[str, dict[str, str]] = {}
        for flavor, amounts in ((name, each) for group in granted for name, each in group.items()):
            for name, amount in amounts.items():
                assert not isinstance(amount, str)
                if uses := dice.randint(0, int(amount["nominalQuota"])):
                    used.setdefault(flavor, {})[name] = str(uses)
        return Queue(granted, cohort=cohort, prefers_own=dice.random() < 0.5, used=used)

    def pods() -> Pods:
        asked = {GPU: str(dice.randint(1, 5))}
        if dice.random() < 0.5:
            asked["cpu"] = str(dice.randint(1, 5))
        zone = {"zone": dice.choice(FLAVORS)} if dice.random() < 0.3 else {}
        return Pods(asked, count=dice.randint(1, 2), labels=zone)

    def flavor(name: str) -> Flavor:
        return Flavor(
            labels={"zone": name} if dice.random() < 0.5 else {},
            taints=[TAINT] if dice.random() < 0.15 else [],
        )

    queues = only(*(queue() for _ in range(dice.randint(1, 4))))
    parents = {"north": dice.choice(("", "all")), "south": "all", "all": ""}
    made = dice.sample(COHORTS, dice.randint(0, len(COHORTS)))
    return Row(
        what=f"seed {seed}",
        queues=queues,
        asks=[pods() for _ in range(dice.randint(1, 3))],
        then="",
        flavors={name: flavor(name) for name in FLAVORS},
        cohorts={
            name: Cohort(
                parent=parents[name],
                groups=quotas(is_limited=bool(parents[name])) if dice.random() < 0.5 else (),
            )
            for name in made
        },
        coming=[(dice.choice(list(queues)), pods())] if dice.random() < 0.5 else (),
    )


def ours(row: Row) -> object:
    """What our arithmetic says of a row."""
    found = outcome(answer_to(row, reports_of(row)))
    return NOT_NOW if isinstance(found, str) else found


def test_any_cluster_is_judged_as_kueue_judges_it(worker: Plane, namespace: str) -> None:
    rows = [drawn(seed) for seed in range(CLUSTERS)]
    wanted = {row.what: ours(row) for row in rows}
    assert let_in(worker, namespace, rows, wanted) == {}
    assert {each == NOT_NOW for each in wanted.values()} == {True, False}
