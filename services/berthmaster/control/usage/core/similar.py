"""Features that ended jobs share, and the report of similar jobs. Pure.

Jobs are similar in three degrees, the closest first: the same labels and shape, the same program
(image, command and arguments), the same shape. A report uses the closest degree with enough ended
jobs. The degrees are those of the resolver's estimates (lib/engine/queueing/expectations.py).

Example: a job with the label run=17 has no job with the same labels, and 40 with the same program.
The report has those 40, with ``by`` program.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.control.usage.core import waits
from berthmaster.lib.engine.queueing.expectations import groups_of, kinds_of
from berthmaster.lib.messages.usage import JobsReport, SimilarBy
from berthmaster.lib.messages.workload import JobRequest

ENOUGH: Final = 3  # jobs of a degree
CAUSES: Final = 20  # in a report
OTHER: Final = "other"
_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")
_CAUSE_CHARS: Final = 120


class Likeness(NamedTuple):
    """Digests of the features that a job shares with others, "" for a missing feature."""

    labels: str
    program: str
    shape: str


class Outcome(NamedTuple):
    """An ended job in a report of several."""

    state: str
    reason: str
    submitted_ms: int
    placed_ms: int | None
    running_ms: int | None
    ended_ms: int


def likeness_of(tenant: str, request: JobRequest) -> Likeness:
    labelled, shape, *_ = kinds_of(tenant, request)
    program = next((g for g in groups_of(tenant, request) if g[0] == "program"), None)
    return Likeness(*(digest_of(kind) if kind else "" for kind in (labelled, program, shape)))


def digest_of(kind: Sequence[str]) -> str:
    """Return a key for equal features."""
    return hashlib.blake2b("\0".join(kind).encode(errors="replace"), digest_size=12).hexdigest()


def jobs_report(by: SimilarBy, outcomes: Sequence[Outcome], *, capped: bool) -> JobsReport:
    """Sum up ended jobs. ``capped``: the period has more."""
    states = Counter(each.state for each in outcomes)
    ran = waits.of(
        each.ended_ms - each.running_ms
        for each in outcomes
        if each.state == "succeeded" and each.running_ms is not None
    )
    waited = waits.of(
        each.placed_ms - each.submitted_ms for each in outcomes if each.placed_ms is not None
    )
    causes = Counter(cause_of(each.reason) for each in outcomes if each.state == "failed")
    shown = dict(causes.most_common(CAUSES))
    if rest := sum(causes.values()) - sum(shown.values()):
        shown[OTHER] = shown.get(OTHER, 0) + rest
    return JobsReport(
        by=by,
        jobs=len(outcomes),
        succeeded=states["succeeded"],
        failed=states["failed"],
        cancelled=states["cancelled"],
        ran_low_s=waits.percentile(ran, 0.1),
        ran_s=waits.percentile(ran, 0.5),
        ran_high_s=waits.percentile(ran, 0.9),
        wait_p50_s=waits.percentile(waited, 0.5),
        wait_p95_s=waits.percentile(waited, 0.95),
        causes=shown,
        capped=capped,
    )


def cause_of(reason: str) -> str:
    """Return the reason without its variable parts: numbers, and text behind a colon.

    Exit codes stay. Example: "exit code 137 in pod main-3: Killed" becomes "exit code 137 in pod
    main-N".
    """
    head = reason.split(": ", 1)[0][:_CAUSE_CHARS] or "no reason given"
    code = re.search(r"exit code \d+", head)
    plain = _NUMBERS.sub("N", head)
    return plain.replace("exit code N", code[0], 1) if code else plain
