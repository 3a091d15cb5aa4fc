"""The end of a run: a table of its steps, and everything that a reader should not have to look for.

The last line is always `N passed, N failed, N skipped`, where a check counts as one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.suite.kept import MOST_TIMES, slowest
from scripts.suite.report import Row


def summarize(rows: Sequence[Row]) -> list[str]:
    """The lines, the total as the last one."""
    lines = [
        (
            f"{'step':14}{'verdict':18}{'passed':>8}{'failed':>8}{'skipped':>9}"
            f"{'seconds':>10}{'CPU seconds':>13}"
        )
    ]
    for row in rows:
        counts = f"{row.passed:8}{row.failed:8}{row.skipped:9}"
        lines.append(f"{row.name:14}{row.verdict:18}{counts}{row.wall_s:10.1f}{row.cpu_s:13.1f}")
    if found := slowest(rows):
        lines.append("slowest tests, seconds with what they set up:")
        lines += [f"{took_s:8.1f}  {name}" for name, took_s in found]
    for row in rows:
        lines += [f"skipped in {row.name}: {skip}" for skip in row.skips]
    for row in rows:
        for name, cause in row.causes.items():
            told = "failed, then passed when run once more" if name in row.unstable else "FAILED"
            lines += [f"{told} in {row.name}: {name}", *(f"    {line}" for line in cause)]
    passed, failed, skipped = (
        sum(row.passed for row in rows),
        sum(row.failed for row in rows),
        sum(row.skipped for row in rows),
    )
    return [*lines, f"{passed} passed, {failed} failed, {skipped} skipped"]


def stability(rows: Sequence[Row], times: Mapping[str, int], kept_in: Path) -> Row | None:
    """Of the tiers that ran: the tests that have passed only when repeated, now or earlier. Those
    that did so too often fail. None if there are none."""
    ran = {row.name for row in rows}
    found = {name: n for name, n in sorted(times.items()) if name.partition(" ")[0] in ran}
    if not found:
        return None
    row = Row("stability")
    for name, count in found.items():
        tier, _, test = name.partition(" ")
        often = f"{count} time{'s' if count > 1 else ''}"
        print(f"unstable in {tier}: {test} failed and then passed when run once more, {often}")
        row.failed += count >= MOST_TIMES
    print(
        f"unstable tests are listed in {kept_in}; {MOST_TIMES} times fail the run, and each run in"
        " which such a test passes at once takes one off."
    )
    row.verdict = "FAILED" if row.failed else "passed"
    return row
