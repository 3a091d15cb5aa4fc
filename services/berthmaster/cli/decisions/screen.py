"""The result of repeated decisions: one screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.output.amounts import duration
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.control.resolver.core.counterfactual import Alternative, Figures, Would
from berthmaster.control.resolver.replay import Difference, Report


def repeated(report: Report) -> RenderableType:
    """Show whether all decisions came out equal, else the first difference.

    Under other settings, show the changed placements.
    """
    there = safe(
        f"{report.decisions:,} decisions exist; {report.archived:,} are in the archive alone"
    )
    if not report.repeated:
        why = f": {report.why_not}" if report.why_not else ""
        return Group(there, safe(f"None was repeated, which shows nothing{why}", style="red"))
    if report.otherwise is not None:
        return Group(there, alternative(report.otherwise, report.not_repeatable))
    lines: list[RenderableType] = [
        there,
        safe(
            f"{report.repeated:,} repeated: {report.equal:,} came out equal, "
            f"{report.different:,} otherwise, {report.not_repeatable:,} cannot be repeated"
        ),
    ]
    if report.why_not:
        lines.append(safe(f"Not repeatable: {report.why_not}"))
    for version, each in report.other_engines.items():
        lines.append(
            safe(
                f"{each.decisions:,} were made by engine {version}; engine {report.engine} would"
                f" place {each.same:,} of them alike and {each.would_differ:,} otherwise"
            )
        )
    if report.first_difference is not None:
        lines += first_difference(report.first_difference)
    return Group(*lines)


def first_difference(first: Difference) -> list[RenderableType]:
    """Return the place of the difference, and the inputs of the decision."""
    table = plain_table("INPUT", "SEEN", "HERE", right=("SEEN", "HERE"))
    for each in first.inputs:
        table.add_row(safe(each.name), f"{each.seen:,}", f"{each.here:,}")
    if first.lacking:
        verdict = f"Not all that its decider saw is here: {first.lacking}."
    else:
        verdict = "All that its decider saw is here: a message or the code is another than then."
    return [
        safe(f"First difference: decision {first.number}, {first.field or 'all'}"),
        safe(f"  was {first.was}"),
        safe(f"  now {first.now}"),
        table,
        safe(verdict),
    ]


def alternative(otherwise: Alternative, not_repeatable: int) -> RenderableType:
    compared = otherwise.compared
    lines: list[RenderableType] = [
        safe(
            f"{compared.decisions:,} decisions: {compared.same:,} would be the same, "
            f"{compared.would_differ:,} otherwise",
            style="bold",
        )
    ]
    if not_repeatable:
        lines.append(safe(f"{not_repeatable:,} more cannot be repeated"))
    if otherwise.kinds:
        lines.append(safe(", ".join(f"{n:,} jobs {how}" for how, n in otherwise.kinds.items())))
    lines += [safe(), figures(otherwise.was, otherwise.would)]
    if otherwise.first:
        lines += [safe(), differences(otherwise.first)]
        more = sum(otherwise.kinds.values()) - len(otherwise.first)
        if more > 0:
            lines.append(safe(f"and {more:,} more"))
    return Group(*lines)


def figures(was: Figures, would: Figures) -> RenderableType:
    table = plain_table("", "WAS", "WOULD BE", right=("WAS", "WOULD BE"))
    table.add_row("jobs placed", f"{was.placements:,}", f"{would.placements:,}")
    table.add_row("mean wait", duration(was.mean_wait_s), duration(would.mean_wait_s))
    table.add_row("longest wait", duration(was.longest_wait_s), duration(would.longest_wait_s))
    for cluster in sorted(was.clusters.keys() | would.clusters.keys()):
        before, after = was.clusters.get(cluster, 0), would.clusters.get(cluster, 0)
        table.add_row(safe(f"on {cluster}"), f"{before:,}", f"{after:,}")
    return table


def differences(first: Sequence[Would]) -> RenderableType:
    table = plain_table("DECISION", "WORKLOAD", "WAS", "WOULD BE", "HOW", right=("DECISION",))
    for each in first:
        table.add_row(
            f"{each.decision:,}",
            safe(f"{each.tenant}/{each.id}"),
            safe(each.was or "-"),
            safe(each.would or "-"),
            each.how,
        )
    return table
