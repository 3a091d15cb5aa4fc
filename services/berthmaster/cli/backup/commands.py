"""`berth backup`. Another package does the work, and is imported when called."""

from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import click

from berthmaster.cli.audit.commands import read
from berthmaster.cli.session import Session, bus_command
from berthmaster.client import BerthError

T = TypeVar("T")


async def done(work: Awaitable[T]) -> T:
    """Await the backup, and convert its errors to the client's."""
    from berthmaster.cli.backup.core import BrokenBackup
    from berthmaster.cli.backup.take import NotTheSame

    try:
        return await read(work)
    except (BrokenBackup, NotTheSame, OSError, TimeoutError) as error:
        raise BerthError(str(error)) from error


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@bus_command
async def backup(session: Session, folder: Path) -> int:
    """Copy the event log and settings to FOLDER. Later runs add only new messages."""
    from berthmaster.cli.backup.take import take
    from berthmaster.cli.output.terminal import safe

    async with session.client() as berth:
        added = await done(take(berth.connection, folder))
    session.out.document(
        added,
        lambda: safe(
            "\n".join(
                f"{one.stream}: {one.added:,} new, {one.messages:,} in all, up to {one.last:,}"
                for one in added
            )
        ),
    )
    return 0
