"""Placements on a real API server: from a changed score to the PlacementDecision that follows.

`berth serve placement` as a process of its own with its own rights, 20 clusters, and this process,
which changes a score and watches decisions. Time runs from when the API server has answered the
change of the score. Once with one Placement, a change every 0.4 s, and once with a hundred that all
follow the same score: then it is the time until the last of them has changed. Every write is synced
to disk by the API server's own store; a synced write of one score is measured beside it.
"""

import secrets
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import Unreachable
from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.placementing import GROUP, Rig, rig

CLUSTERS: Final = 20
CHANGES: Final = 40
EVERY_S: Final = 0.4
TOGETHER: Final = 100
ROUNDS: Final = 5
LIMIT_S: Final = 30.0
AT_MOST_MS: Final = 30.0
BUDGETS: Final = {"placement_reaction_p50_ms": ("<=", AT_MOST_MS)}
NOTES: list[str] = []
ADDON: Final = {"type": "AddOn", "addOn": {"resourceName": "gpus", "scoreName": "gpu"}}
BY_GPU: Final = {"mode": "Exact", "configurations": [{"scoreCoordinate": ADDON, "weight": 1}]}


class Decisions(threading.Thread):
    """Watches: which cluster each Placement has, and since when."""

    def __init__(self, hub: Rig) -> None:
        super().__init__(daemon=True, name="decisions")
        self._hub = hub
        self._path = f"/apis/{GROUP}/v1beta1/namespaces/{hub.namespace}/placementdecisions"
        self._news = threading.Condition()
        self._chosen: dict[str, tuple[str, float]] = {}

    def run(self) -> None:
        """For ever."""
        while True:
            with suppress(Unreachable):
                for event in self._hub.hub.api.watch(self._path, limit_s=300.0):
                    self._take(event["object"], time.perf_counter())

    def _take(self, page: dict[str, Any], at_s: float) -> None:
        decisions = page.get("status", {}).get("decisions") or [{"clusterName": ""}]
        cluster, name = decisions[0]["clusterName"], page["metadata"]["name"]
        with self._news:
            if self._chosen.get(name, ("", 0.0))[0] != cluster:
                self._chosen[name] = cluster, at_s
                self._news.notify_all()

    def all_have(self, cluster: str, count: int) -> float:
        """When the last of so many had this cluster."""
        with self._news:
            there = self._news.wait_for(lambda: self._have(cluster) >= count, LIMIT_S)
            assert there, f"{self._have(cluster)} of {count} within {LIMIT_S} s"
            return max(at_s for chosen, at_s in self._chosen.values() if chosen == cluster)

    def _have(self, cluster: str) -> int:
        return sum(chosen == cluster for chosen, _ in self._chosen.values())


def measure_on(hub: Rig) -> dict[str, float]:
    """Figures of one hub."""
    for n in range(CLUSTERS):
        hub.cluster(f"c{n}", scored=True)
        hub.score(f"c{n}", -n)
    seen = Decisions(hub)
    hub.place("p0", numberOfClusters=1, prioritizerPolicy=BY_GPU)
    hub.start()
    hub.until_decided("c0", name="p0")
    seen.start()
    seen.all_have(hub.named("c0"), 1)
    wrote_ms, alone_ms = _rounds(hub, seen, CHANGES, 1)
    for n in range(1, TOGETHER):
        hub.place(f"p{n}", numberOfClusters=1, prioritizerPolicy=BY_GPU)
    for n in range(1, TOGETHER):
        hub.until(lambda name=f"p{n}": hub.decided(name), f"p{n} is decided")  # type: ignore[misc]
    _, together_ms = _rounds(hub, seen, ROUNDS, TOGETHER)
    return {
        "placement_score_write_p50_ms": statistics.median(wrote_ms),
        "placement_reaction_p50_ms": statistics.median(alone_ms),
        "placement_reaction_p95_ms": sorted(alone_ms)[int(0.95 * len(alone_ms)) - 1],
        f"placement_{TOGETHER}_at_once_p50_ms": statistics.median(together_ms),
    }


def _rounds(hub: Rig, seen: Decisions, rounds: int, count: int) -> tuple[list[float], list[float]]:
    wrote_ms: list[float] = []
    took_ms: list[float] = []
    for number in range(rounds):
        best = 1 - number % 2
        # It falls behind first, by less than would move anybody: it is not chosen.
        hub.score(f"c{best}", 40)
        hub.score(f"c{1 - best}", 50)
        time.sleep(EVERY_S)
        seen.all_have(hub.named(f"c{1 - best}"), count)
        began_s = time.perf_counter()
        hub.score(f"c{best}", 60)
        answered_s = time.perf_counter()
        done_s = seen.all_have(hub.named(f"c{best}"), count)
        wrote_ms.append((answered_s - began_s) * 1000)
        took_ms.append((done_s - answered_s) * 1000)
    return wrote_ms, took_ms


def measure() -> dict[str, float]:
    """Figures, or none with the reason where there is no control plane."""
    NOTES.clear()
    try:
        programs = find()
    except Unavailable as reason:
        NOTES.append(f"not measured: {reason}")
        return {}
    with tempfile.TemporaryDirectory(prefix="berth-bench-placement-") as name:
        folder = Path(name)
        with Planes(folder / "planes", workers=0, programs=programs) as planes:
            namespace = f"bench-{secrets.token_hex(4)}"
            planes.hub.make_namespace(namespace)
            with rig(planes, namespace, folder) as hub:
                return measure_on(hub)


if __name__ == "__main__":
    for figure, value in measure().items():
        sys.stdout.write(f"{figure:45} {value:12.2f}\n")
    sys.stdout.write("\n".join(NOTES) + "\n")
