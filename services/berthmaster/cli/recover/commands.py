"""`berth recover`: builds a new event log from the remains of a damaged one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from berthmaster.cli.audit.commands import read
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command
from berthmaster.client import BerthError

if TYPE_CHECKING:
    from rich.text import Text

    from berthmaster.cli.recover.build import Report

RESTORER_CREDS = "restorer.creds"  # beside the usual credentials
SHOWN_LINES = 50


@click.command()
@click.option(
    "--backup",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of `berth backup` to restore lost events from.",
)
@click.option(
    "--without",
    metavar="CLUSTER",
    multiple=True,
    help="Cluster that is lost for good, whose jobs are requeued; * = none.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for reports of the clusters.",
)
@click.option("--reason", default="", help="Reason for the event log; required with --yes.")
@click.option("--yes", is_flag=True, help="Build the new log. [default: show the plan only]")
@bus_command
async def recover(
    session: Session,
    backup: Path | None,
    without: tuple[str, ...],
    wait_s: float,
    reason: str,
    yes: bool,
) -> int:
    """Build a new event log from a damaged log, a backup, and the reports of clusters.

    Without --yes nothing is changed: the report lists the jobs to carry over, requeue or cancel.
    With --yes all services stop deciding, the old streams stay under other names, and services fold
    the new log from its beginning. An interrupted run can be repeated.

    The command uses the credentials of the user "restorer", stored beside the operator's.
    """
    from dataclasses import replace

    from berthmaster.cli.backup.core import BrokenBackup
    from berthmaster.cli.recover.build import Recovery, Refused
    from berthmaster.cli.recover.copies import NotReadable
    from berthmaster.cli.recover.holdings import ask
    from berthmaster.cli.recover.streams import NotCopied, NotProved
    from berthmaster.lib.access.permissions import inbox_prefix

    if yes and not reason:
        raise click.UsageError("--reason is missing: why the log is built anew, for the record")
    own = Path(session.target.creds_file).with_name(RESTORER_CREDS)
    if session.target.creds_file and own.exists():
        prefix = inbox_prefix("restorer")
        session.target = replace(session.target, creds_file=str(own), inbox_prefix=prefix)
    async with session.client() as berth:
        conn = berth.connection
        recovery = Recovery(
            conn,
            lambda clusters: ask(conn, clusters, limit_s=wait_s),
            backup=backup,
            without=frozenset(without),
            progress=session.out.say,
        )
        try:
            report = await read(recovery.build(reason) if yes else recovery.show())
        except (
            BrokenBackup,
            NotCopied,
            NotProved,
            NotReadable,
            OSError,
            Refused,
            TimeoutError,
        ) as error:
            raise BerthError(str(error)) from error
    session.out.document(report, lambda: screen(report))
    return EXIT_FAILED if report.silent else 0


def screen(report: "Report") -> "Text":
    """Return the report as text."""
    from berthmaster.cli.output.terminal import safe

    lines = [f"Damage: {why}" for why in report.damage] or ["No damage is known."]
    lines += [
        f"Left of the log: {report.left:,} messages; in the backup: {report.from_backup:,} events",
        f"Clusters that said what they hold: {', '.join(report.answered) or 'none'}",
    ]
    if report.silent:
        lines.append(f"Silent: {', '.join(report.silent)}")
    verb = "has" if report.built else "would have"
    lines.append(
        f"The new log {verb} {report.carried:,} open jobs and {report.tombstones:,} ended ones, "
        f"from sequence {report.first:,} on"
    )
    if report.settings:
        lines.append(f"CONTROL {verb} {report.settings:,} settings")
    lines += [
        f"  {one.outcome:<9}  {one.tenant}/{one.id}: {one.why}"
        for one in report.lines[:SHOWN_LINES]
    ]
    if len(report.lines) > SHOWN_LINES:
        lines.append(f"  and {len(report.lines) - SHOWN_LINES:,} more; --json has all")
    if report.kept_as:
        lines.append(f"The old streams are kept as {', '.join(report.kept_as)}.")
    elif not report.built:
        lines.append("Nothing is changed. --yes --reason … builds it.")
    return safe("\n".join(lines))
