"""Open Cluster Management's own scheduler on a hub of ours. Of two Placements that ask the same,
one of them annotated as ours, both have the same decisions, whatever happens to the clusters; one
goes from either to the other without anybody being moved; and its Placements follow our scores."""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.lab.controlplane.planes import Planes
from tests.bus.shells import in_loop
from tests.cluster.ocming import NAME, bus, calling, ocm, with_rights
from tests.cluster.placementing import CLUSTERS, GROUP, Rig, rig
from tests.cluster.real_ocm import WHY_NOT, is_named, placement_controller

pytestmark = [
    pytest.mark.skipif(not is_named(), reason=WHY_NOT),
]
SEED: Final = 20261126
SHORT: Final = tuple(f"c{number:02}" for number in range(12))
PAIRS: Final = 30
EDITS: Final = 60
QUIET_S: Final = 0.3  # both have seen an edit before the next
MODELS: Final = ("nvidia-tesla-t4", "nvidia-a100", "nvidia-h100")
REGIONS: Final = ("eu", "us")
RANKING: Final = "berthmaster.io/placement-ranking"


@pytest.fixture
def hub(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    with rig(planes, namespace, tmp_path) as made:
        yield made


class Some:
    """Clusters, requests and edits by chance. Without Steady and NoSelectIfNew, by which it counts
    what was decided before: who was late has not seen each edit."""

    def __init__(self, hub: Rig, seed: int) -> None:
        self.hub, self.dice = hub, random.Random(seed)  # reproducible
        self.labels = {short: self._labels() for short in SHORT}

    def _labels(self) -> dict[str, str]:
        some = {"accelerator": self.dice.choice(MODELS), "region": self.dice.choice(REGIONS)}
        return some if self.dice.random() < 0.9 else {"region": some["region"]}

    def make_clusters(self) -> None:
        for short in SHORT:
            self.hub.cluster(short, scored=True, **self.labels[short])
            self.status(short)
            self.score(short)

    def status(self, short: str) -> None:
        """What its agent tells: room and claims."""
        cpu, memory = self.dice.choice((8, 16, 64)), self.dice.choice((32, 128, 512))
        told = {
            "allocatable": {"cpu": str(cpu), "memory": f"{memory}Gi"},
            "capacity": {"cpu": "64", "memory": "512Gi"},
            "clusterClaims": [
                {"name": "platform", "value": self.dice.choice(("EKS", "GKE", "Other"))},
                {"name": "gpus", "value": str(self.dice.randrange(0, 20))},
            ],
            "conditions": [],
            "version": {"kubernetes": self.dice.choice(("1.34.1", "1.35.0"))},
        }
        path = f"{CLUSTERS}/{self.hub.named(short)}/status"
        self.hub.hub.api.merge(path, {"status": told})

    def score(self, short: str) -> None:
        ends = datetime.now(UTC) + timedelta(hours=self.dice.choice((-1, 1, 1, 1, 1)))
        until = ends.strftime("%Y-%m-%dT%H:%M:%SZ") if self.dice.random() < 0.5 else None
        if short == SHORT[0]:  # of a comparison in which nobody's score is known ours is another
            until = None
        self.hub.score(short, self.dice.randrange(-100, 101), until)

    def taints(self, short: str) -> None:
        taint = {
            "key": self.dice.choice(("gpu", "maintenance")),
            "value": self.dice.choice(("", "soon")),
            "effect": self.dice.choice(("NoSelect", "PreferNoSelect")),
        }
        self.hub.taint(short, *([taint] if self.dice.random() < 0.6 else []))

    def edit(self) -> str:
        """Something happens to one cluster; what, in words."""
        short, what = self.dice.choice(SHORT), self.dice.randrange(5)
        path = f"{CLUSTERS}/{self.hub.named(short)}"
        if what == 0:
            self.labels[short] = self._labels()
            labels = dict.fromkeys(("accelerator", "region")) | self.labels[short]
            self.hub.hub.api.merge(path, {"metadata": {"labels": labels}})
        elif what == 1:
            self.status(short)
        elif what == 2:
            self.score(short)
        elif what == 3:
            self.taints(short)
        else:
            accepted = self.dice.random() < 0.8
            self.hub.hub.api.merge(path, {"spec": {"hubAcceptsClient": accepted}})
        return f"{short} {('labels', 'status', 'score', 'taints', 'accepted')[what]}"

    # ---- requests

    def request(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"prioritizerPolicy": self._policy()}
        if self.dice.random() < 0.8:
            number = self.dice.choice((1, 1, 2))
            spec["predicates"] = [
                {"requiredClusterSelector": self._selector()} for _ in range(number)
            ]
        if self.dice.random() < 0.7:
            spec["numberOfClusters"] = self.dice.randrange(1, 8)
        if self.dice.random() < 0.6:
            spec["tolerations"] = [self._toleration()]
        if self.dice.random() < 0.3:
            spec["decisionStrategy"] = {"groupStrategy": self._groups()}
        return spec

    def _selector(self) -> dict[str, Any]:
        model, region = self.dice.choice(MODELS), self.dice.choice(REGIONS)
        words = self.dice.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        expression: dict[str, Any] = {"key": "accelerator", "operator": words}
        if words in ("In", "NotIn"):
            expression["values"] = self.dice.sample(MODELS, 2)
        some: list[dict[str, Any]] = [
            {"labelSelector": {"matchLabels": {"accelerator": model}}},
            {"labelSelector": {"matchExpressions": [expression]}},
            {
                "claimSelector": {
                    "matchExpressions": [
                        {"key": "platform", "operator": "In", "values": ["EKS", "GKE"]}
                    ]
                }
            },
            {"celSelector": {"celExpressions": [self._expression(region)]}},
        ]
        both = self.dice.sample(some, self.dice.choice((1, 1, 2)))
        return {name: value for one in both for name, value in one.items()}

    def _expression(self, region: str) -> str:
        cluster, scores = "managedCluster", 'managedCluster.scores("gpus")'
        version, room = f"{cluster}.status.version", f"{cluster}.status.allocatable"
        return self.dice.choice(
            (
                f'{cluster}.metadata.labels["region"] == "{region}"',
                f'{scores}.exists(s, s.name == "gpu" && s.value > 0)',
                f'{cluster}.status.clusterClaims.exists(c, c.name == "gpus" && int(c.value) >= 8)',
                f'semver({version}.kubernetes).isGreaterThan(semver("1.34.5"))',
                f'quantity({room}["memory"]).isGreaterThan(quantity("64Gi"))',
                f"{cluster}.spec.hubAcceptsClient",
            )
        )

    def _policy(self) -> dict[str, Any]:
        """Without Balance, which counts what all others have decided at that moment."""
        room = ("ResourceAllocatableCPU", "ResourceAllocatableMemory")
        some = [
            {"scoreCoordinate": {"type": "BuiltIn", "builtIn": name}, "weight": self._weight()}
            for name in self.dice.sample(room, self.dice.randrange(0, 3))
        ]
        addon = {"resourceName": "gpus", "scoreName": "gpu"}
        some.append(
            {"scoreCoordinate": {"type": "AddOn", "addOn": addon}, "weight": self._weight()}
        )
        if self.dice.random() < 0.3:
            some += [
                {"scoreCoordinate": {"type": "BuiltIn", "builtIn": name}, "weight": 0}
                for name in ("Balance", "Steady")
            ]
            return {"mode": "Additive", "configurations": some}
        return {"mode": "Exact", "configurations": some}

    def _weight(self) -> int:
        return self.dice.choice((-10, -1, 1, 2, 5, 10))

    def _toleration(self) -> dict[str, Any]:
        if self.dice.random() < 0.5:
            return {"key": "gpu", "operator": "Exists"}
        return {"key": "maintenance", "operator": "Equal", "value": "soon"}

    def _groups(self) -> dict[str, Any]:
        selector = {"labelSelector": {"matchLabels": {"region": "eu"}}}
        named = {"groupName": "eu", "groupClusterSelector": selector}
        size = self.dice.choice((1, 2, "50%", "100%"))
        return {"clustersPerDecisionGroup": size} | (
            {"decisionGroups": [named]} if self.dice.random() < 0.7 else {}
        )


def told(hub: Rig, name: str) -> tuple[Any, ...]:
    """What readers of a Placement and of its decisions go by."""
    pages = []
    for page in hub.pages(name):
        labels = page["metadata"]["labels"]
        group = labels[f"{GROUP}/decision-group-name"], labels[f"{GROUP}/decision-group-index"]
        chosen = [one["clusterName"] for one in page.get("status", {}).get("decisions", ())]
        pages.append((*group, sorted(chosen)))
    satisfied = hub.condition("PlacementSatisfied", name)[:2]
    misconfigured = hub.condition("PlacementMisconfigured", name)[0]
    number = hub.status(name).get("numberOfSelectedClusters", 0)
    return sorted(pages), satisfied, misconfigured, number


def same(hub: Rig, after: str) -> None:
    """Both say the same of each request."""
    differ: dict[int, Any] = {}

    def settled() -> bool:
        differ.clear()
        for number in range(PAIRS):
            both = told(hub, f"ours-{number}"), told(hub, f"theirs-{number}")
            if both[0] != both[1] or not both[0][1][0]:
                differ[number] = both
        return not differ

    try:
        hub.until(settled, "OCM's scheduler and ours decide alike")
    except AssertionError as error:
        raise AssertionError(f"after {after}: (ours, theirs) of {differ}") from error


def test_both_decide_alike_whatever_happens_to_the_clusters(hub: Rig, namespace: str) -> None:
    some = Some(hub, SEED)
    some.make_clusters()
    for number in range(PAIRS):
        spec = some.request()
        hub.place(f"ours-{number}", **spec)
        hub.place(f"theirs-{number}", ours=False, **spec)
    hub.start()
    with placement_controller(hub.hub, namespace):
        same(hub, "the start")
        for number in range(EDITS):
            done = some.edit()
            time.sleep(QUIET_S)
            if number % 5 == 4:
                same(hub, f"edit {number}: {done}")
        same(hub, "all edits")


def is_ours(hub: Rig) -> bool:
    """Whether the first page has our words on it."""
    return RANKING in hub.pages()[0]["metadata"].get("annotations", {})


def test_one_goes_from_ocm_to_us_and_back_and_nobody_moves(hub: Rig, namespace: str) -> None:
    for short, value in (("c1", 10), ("c2", 50), ("c3", 70), ("c4", -20)):
        hub.cluster(short, scored=True)
        hub.score(short, value)
    addon = {"resourceName": "gpus", "scoreName": "gpu"}
    by_score = {"scoreCoordinate": {"type": "AddOn", "addOn": addon}, "weight": 1}
    hub.place(
        ours=False,
        numberOfClusters=2,
        prioritizerPolicy={"mode": "Exact", "configurations": [by_score]},
    )
    hub.start()
    with placement_controller(hub.hub, namespace):
        hub.until_decided("c2", "c3")
        first = {page["metadata"]["uid"] for page in hub.pages()}
        mark = hub.hub.audit.mark()
        hub.take()
        hub.until(lambda: is_ours(hub), "it is ours")
        hub.score("c1", 60)
        hub.until_decided("c1", "c3")
        hub.give_back()
        hub.until(lambda: not is_ours(hub), "it is OCM's")
        hub.score("c4", 90)
        hub.until_decided("c3", "c4")
        assert {page["metadata"]["uid"] for page in hub.pages()} == first
        counted = hub.hub.audit.count(since=mark)
        assert not [key for key in counted if key[1:] == ("delete", "placementdecisions")]


@in_loop
async def test_its_placements_follow_our_scores(hub: Rig, namespace: str, tmp_path: Path) -> None:
    for short in ("east", "west"):
        await calling(hub.cluster, short, scored=True)
    addon = {"resourceName": NAME, "scoreName": "gpuClusterAvailable"}
    most_free = {"scoreCoordinate": {"type": "AddOn", "addOn": addon}, "weight": 1}
    policy = {"mode": "Exact", "configurations": [most_free]}
    await calling(hub.place, ours=False, numberOfClusters=1, prioritizerPolicy=policy)
    role = "berthmaster-ocm-hub"
    kubeconfig = await calling(with_rights, hub.hub, namespace, "hub", role)
    with placement_controller(hub.hub, namespace):
        async with bus(tmp_path) as scorer, ocm(scorer.url, kubeconfig):
            await scorer.tell(hub.named("east"), free=3)
            await scorer.tell(hub.named("west"), free=12)
            await calling(hub.until_decided, "west")
            await scorer.tell(hub.named("east"), free=18)
            await calling(hub.until_decided, "east")
            stale = {"freshness": "stale", "note": "no sign of life for 15 s"}
            await scorer.tell(hub.named("east"), free=18, **stale)
            await calling(hub.until_decided, "west")
