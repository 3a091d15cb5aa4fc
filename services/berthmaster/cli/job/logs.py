"""`berth logs`: the output of a job in any cluster."""

import sys
from contextlib import aclosing

import click

from berthmaster.cli.completion import ANY
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage


@click.command()
@click.argument("workload", type=ANY)
@click.option("-f", "--follow", is_flag=True, help="Keep following the log until the job ends.")
@click.option(
    "--pod", type=click.IntRange(0, 4095), default=0, show_default=True, help="Index of the pod."
)
@click.option(
    "--previous", is_flag=True, help="Show the end of the log of the attempt before the last one."
)
@click.option(
    "--since", metavar="TIME", help="Show only lines of this last period, such as 10m or 2h."
)
@click.option(
    "--tail", type=click.IntRange(0, 100_000), help="Start with this number of last lines."
)
@click.option("--timestamps", is_flag=True, help="Show the time of each line.")
@bus_command
async def logs(
    session: Session,
    workload: str,
    follow: bool,
    pod: int,
    previous: bool,
    since: str | None,
    tail: int | None,
    timestamps: bool,
) -> int:
    """Show the log of a pod. The end of the log stays for a day after the pod's end.

    Bytes are shown unchanged; --json replaces bytes outside UTF-8.
    """
    from berthmaster.cli.values import WrongInput, parse_duration_s
    from berthmaster.client import lines_of

    try:
        since_s = None if since is None else parse_duration_s(since)
    except WrongInput as error:
        usage(f"--since: {error}")
    if previous and follow:
        usage("--previous is of an attempt that is over: there is nothing to follow")
    out, many, attempt, shown = session.out, False, 0, False
    async with session.client() as berth:
        pieces = berth.logs(
            workload, follow=follow, pod=pod, previous=previous, since_s=since_s, tail=tail
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if attempt and piece.attempt != attempt:
                    out.say(f"attempt {piece.attempt}, on {piece.cluster or 'no cluster yet'}:")
                attempt = piece.attempt or attempt
                if piece.pods > 1 and not many:
                    many = True
                    out.say(f"pod {pod} of {piece.pods}; --pod shows another")
                if piece.cut:
                    out.say("lines before these are left out")
                if piece.note:
                    out.say(f"{workload}: {piece.note}")
                for line in lines_of(piece):
                    shown = True
                    if out.as_json:
                        text = line.text.decode("utf-8", "replace")
                        out.line({"at": line.at, "attempt": piece.attempt, "text": text})
                    else:
                        stamp = line.at.encode() + b" " if timestamps else b""
                        out.write(stamp + line.text)
    sys.stdout.flush()
    return 0 if shown or follow else EXIT_FAILED
