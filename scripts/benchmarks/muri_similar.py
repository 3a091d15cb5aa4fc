"""Muri's traces without stated durations: what it gains to expect what similar jobs took.

Ours under the default order, where reservations and backfill go by stated durations alone
(``unknown``), and where they go by similar jobs as well (``--expect similar``).
"""

import msgspec

from berthmaster.control.resolver.policy import Policy
from berthmaster.lab.simulate import ours
from berthmaster.lab.simulate.figures import summarize
from berthmaster.lab.simulate.model import told
from berthmaster.lab.simulate.traces import (
    MURI,
    MURI_FLEET,
    TRACES_VARIABLE,
    fleet_named,
    parse_muri,
)
from scripts.benchmarks.trace_files import traces_folder

BUDGETS = {
    f"{trace}_similar_to_unknown_{what}_ratio".replace("-", "_"): ("<=", 1.0)
    for trace in MURI
    for what in ("completion", "wait_p99")
}
PARTS = ("similar",)
NOTES: list[str] = []


def measure(part: str = "") -> dict[str, float]:
    NOTES.clear()
    folder = traces_folder(MURI["muri-1"])
    if folder is None:
        NOTES.append(f"no traces: set {TRACES_VARIABLE} to a folder with {MURI['muri-1']}")
        return {}
    figures: dict[str, float] = {}
    for trace, path in MURI.items():
        jobs = told(parse_muri((folder / path).read_text()), "unknown", 0)
        fleet = fleet_named(MURI_FLEET, clusters=1, nodes=None)
        found = {}
        for name, policy in (
            ("unknown", Policy()),
            ("similar", msgspec.structs.replace(Policy(), expect="similar")),
        ):
            found[name] = summarize(ours.run(fleet, jobs, policy=policy))
            figures[f"{trace}_{name}_completion_s"] = found[name].completion.mean_s
            figures[f"{trace}_{name}_wait_p99_s"] = found[name].wait.p99_s
        unknown, similar = found["unknown"], found["similar"]
        completion = similar.completion.mean_s / unknown.completion.mean_s
        figures[f"{trace}_similar_to_unknown_completion_ratio"] = completion
        wait = similar.wait.p99_s / unknown.wait.p99_s
        figures[f"{trace}_similar_to_unknown_wait_p99_ratio"] = wait
    return {name.replace("-", "_"): figure for name, figure in figures.items()}
