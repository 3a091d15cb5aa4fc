"""`berth wait`: until workloads have ended, or run; for scripts, by its exit code."""

import asyncio
import sys

import click

from berthmaster.cli.completion import ANY
from berthmaster.cli.session import EXIT_FAILED, EXIT_TOO_LATE, Session, bus_command, usage
from berthmaster.cli.waiting import Goal, Waiting, position


@click.command()
@click.argument("workloads", nargs=-1, required=True, metavar="WORKLOAD...", type=ANY)
@click.option(
    "--until", type=click.Choice(("ended", "running")), default="ended", show_default=True
)
@click.option("--at-most", metavar="TIME", help="Give up then, with exit code 5: 90s, 2h.")
@bus_command
async def wait(
    session: Session, workloads: tuple[str, ...], until: Goal, at_most: str | None
) -> int:
    """Wait for workloads and show what happens to them.

    The exit code is 0 if all run or have succeeded, 1 if one failed or was cancelled, 5 if the time
    was over before.
    """
    from berthmaster.cli.render.terminal import safe
    from berthmaster.cli.requests import WrongInput, parse_duration_s

    try:
        limit_s = None if at_most is None else parse_duration_s(at_most)
    except WrongInput as error:
        usage(f"--at-most: {error}")
    async with session.client() as berth:
        waiting = Waiting(session, berth, set(workloads), until)
        try:
            async with asyncio.timeout(limit_s):
                since = await position(berth)
                for name in sorted(workloads):
                    # What has happened before is in no later event.
                    if (view := await waiting.there(name)) is not None:
                        text = f"{name} is {view.state}"
                        session.out.item(view, lambda text=text: safe(text))  # type: ignore[misc]
                bad = await waiting.follow_all(since)
        except TimeoutError:
            missing = ", ".join(sorted(waiting.open))
            sys.stderr.write(f"berth: not {until} within {at_most}: {missing}\n")
            return EXIT_TOO_LATE
    return EXIT_FAILED if bad else 0
