"""Several policies on one list: what ``berth simulate`` and the benchmark ask for."""

from collections.abc import Callable, Sequence

from berthmaster.emulator.fleets import ClusterSpec
from berthmaster.simulate import baseline, ours
from berthmaster.simulate.model import Job, Progress, Run
from berthmaster.simulate.policies import OURS
from berthmaster.simulate.policies import baseline as baseline_named


def play(
    name: str,
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Run:
    """One list under the policy of that name. Raises SimulationError."""
    if name == OURS:
        return ours.run(clusters, jobs, progress=progress)
    return baseline.run(clusters, jobs, baseline_named(name), seed=seed, progress=progress)


def play_all(
    names: Sequence[str],
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    *,
    seed: int = 0,
    began: Callable[[str], Progress],
) -> list[Run]:
    """One after the other; ``began`` is told each and gives where to report its progress."""
    return [play(name, clusters, jobs, seed=seed, progress=began(name)) for name in names]
