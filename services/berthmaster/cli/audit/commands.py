"""`berth audit`. Another package does the work, and is imported when called."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from berthmaster.cli.session import EXIT_FAILED, Session, bus_command
from berthmaster.client import BerthError, NotAllowedError, UnavailableError
from berthmaster.lib.nats.errors import BusError, NotPermitted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.cli.audit.core import AuditReport

T = TypeVar("T")
SHOWN_FINDINGS = 50


async def read(work: Awaitable[T]) -> T:
    """Await a read of the streams, and convert errors of the bus to the client's."""
    try:
        return await work
    except NotPermitted as error:
        raise NotAllowedError(str(error)) from error
    except BusError as error:
        raise UnavailableError(str(error)) from error
    except msgspec.DecodeError as error:
        raise BerthError(f"a message on the bus cannot be read: {error}") from error


@click.command()
@bus_command
async def audit(session: Session) -> int:
    """Check from the bus alone that nothing was lost, doubled or over-committed."""
    from berthmaster.cli.audit.report import audit as check

    async with session.client() as berth:
        report = await read(check(berth.connection))
    session.out.document(report, lambda: audit_screen(report))
    return 0 if report.clean else EXIT_FAILED


def audit_screen(report: "AuditReport") -> "RenderableType":
    from rich.console import Group

    from berthmaster.cli.output.terminal import plain_table, safe

    table = plain_table("", "", right=())
    table.show_header = False
    table.columns[1].justify = "right"
    for name in (
        "submitted", "succeeded", "failed", "cancelled", "running", "waiting", "events", "void",
        "frozen", "carried", "decisions", "placements",
        "withdrawals", "evictions", "node_reports",
    ):  # fmt: skip
        table.add_row(name.replace("_", " "), f"{getattr(report, name):,}")
    table.add_row("most promised of one GPU", f"{report.peak_gpu_milli / 10:g}%")
    lines: list[RenderableType] = [
        table,
        *(
            safe(f"{finding.rule}  {finding.where}: {finding.what}", style="red")
            for finding in report.findings[:SHOWN_FINDINGS]
        ),
    ]
    more = len(report.findings) - SHOWN_FINDINGS + report.findings_left_out
    if more > 0:
        lines.append(safe(f"and {more} more findings"))
    balance = "" if report.accounted else " Not every workload is accounted for."
    verdict = "Clean." if report.clean else "Not clean."
    lines.append(safe(verdict + balance, style="bold green" if report.clean else "bold red"))
    return Group(*lines)
