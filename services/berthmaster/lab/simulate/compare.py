"""Several policies on one list, for ``berth simulate`` and the benchmark."""

from collections.abc import Callable, Sequence

import msgspec

from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.simulate import baseline, ours
from berthmaster.lab.simulate.model import Job, Progress, Run
from berthmaster.lab.simulate.policies import OURS
from berthmaster.lab.simulate.policies import baseline as baseline_named


def play(
    name: str,
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    *,
    progress: Progress | None = None,
    short_first: float = 0.0,
) -> Run:
    """Run one list under a named policy. Raises SimulationError.

    ``short_first`` is a setting of Berthmaster's policy.
    """
    if name == OURS:
        policy = msgspec.structs.replace(ours.POLICY, short_first=short_first)
        return ours.run(clusters, jobs, policy=policy, progress=progress)
    return baseline.run(clusters, jobs, baseline_named(name), progress=progress)


def play_all(
    names: Sequence[str],
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    *,
    began: Callable[[str], Progress],
    short_first: float = 0.0,
) -> list[Run]:
    """Run the policies in turn. ``began`` gets each name and returns a progress callback."""
    return [
        play(name, clusters, jobs, progress=began(name), short_first=short_first) for name in names
    ]
