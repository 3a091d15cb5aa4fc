"""`berth quality`: how well the resolver does, as it tells itself every few seconds."""

import asyncio
from contextlib import aclosing
from typing import Final

import click

from berthmaster.cli.session import Session, bus_command
from berthmaster.client import UnavailableError
from berthmaster.messages.placement import MAIN_CELL

FIRST_LIMIT_S: Final = 12.0  # a report comes every five


@click.command()
@click.option("--cell", default=MAIN_CELL, show_default=True, help="Whose decider.")
@click.option("--once", is_flag=True, help="Show it once and end.")
@bus_command
async def quality(session: Session, cell: str, once: bool) -> None:
    """Show waits, completions, allocation, fragmentation and fairness, as they are told."""
    from berthmaster.cli.render.quality import report as screen

    async with session.client() as berth:
        if not once:
            session.out.say("Following; Ctrl-C ends.")
        async with aclosing(berth.quality(cell)) as reports:
            while True:
                try:
                    async with asyncio.timeout(FIRST_LIMIT_S):
                        report = await anext(reports)
                except TimeoutError:
                    raise UnavailableError(
                        f"no decider of cell {cell} has told how it does for {FIRST_LIMIT_S:g} s"
                    ) from None
                if once:
                    session.out.document(report, lambda report=report: screen(report))  # type: ignore[misc]
                    return
                session.out.screen(report, lambda report=report: screen(report))  # type: ignore[misc]
