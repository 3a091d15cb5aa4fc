"""`berth backup` and `berth restore`, whose work another package does, imported when called."""

from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import click

from berthmaster.cli.audit import read
from berthmaster.cli.session import Session, bus_command
from berthmaster.client import BerthError

T = TypeVar("T")
RESTORER_CREDS = "restorer.creds"  # beside those that are used otherwise


async def done(work: Awaitable[T]) -> T:
    """What is wrong with a backup becomes the client's error, as what is wrong with the bus."""
    from berthmaster.backup.core import BrokenBackup
    from berthmaster.backup.restore import NotEmpty, NotProved
    from berthmaster.backup.take import NotTheSame

    try:
        return await read(work)
    except (BrokenBackup, NotTheSame, NotEmpty, NotProved, OSError, TimeoutError) as error:
        raise BerthError(str(error)) from error


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@bus_command
async def backup(session: Session, folder: Path) -> int:
    """Copy what cannot be made again into FOLDER: at first all, later what is new."""
    from berthmaster.backup.take import take
    from berthmaster.cli.render.terminal import safe

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


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@bus_command
async def restore(session: Session, folder: Path) -> int:
    """Make the streams of an empty bus from the backup in FOLDER, and prove what came back.

    It takes the credentials of the user "restorer", which are looked for beside the operator's.
    """
    from dataclasses import replace

    from berthmaster.backup.restore import restore as make
    from berthmaster.bus.permissions import inbox_prefix
    from berthmaster.cli.render.terminal import safe

    own = Path(session.target.creds_file).with_name(RESTORER_CREDS)
    if session.target.creds_file and own.exists():
        prefix = inbox_prefix("restorer")
        session.target = replace(session.target, creds_file=str(own), inbox_prefix=prefix)
    async with session.client() as berth:
        made = await done(make(berth.connection, folder))
    session.out.document(
        made,
        lambda: safe(
            "\n".join(
                f"{one.stream}: {one.messages:,} messages up to {one.last:,}, digest {one.digest}"
                for one in made
            )
            + "\nProved: counts, last sequences and digests are those of the backup."
        ),
    )
    return 0
