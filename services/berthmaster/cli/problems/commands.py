"""`berth problems [list] | dead | cordons`: problems, worst first; dead letters; cordons."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec

from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, DefaultGroup, Session, bus_command

if TYPE_CHECKING:
    from berthmaster.client import Client
    from berthmaster.client.following import SeenDead
    from berthmaster.lib.engine.fleetview.fleet_problems import Problem

T = TypeVar("T")
LIMIT_S: Final = 5.0
LETTERS_READ: Final = 1000


@click.group(cls=DefaultGroup)
def problems() -> None:
    """List problems, dead letters, or cordons and drains. Without a command: list.

    Options of the list: `berth problems list --help`.
    """


@problems.command("list")
@form_option
@bus_command
async def list_(session: Session, form: Form | None) -> int:
    """List problems: silent clusters, dead letters, streams with data loss.

    Exit code 1 if there is a problem. Alerts report the same problems
    (docs/troubleshooting/alerts.md).
    """
    from berthmaster.cli.problems import screen

    async with session.client() as berth:
        found, unknown = await _found(berth)
        now_s = berth.now()
    found.sort(key=lambda one: one.level != "broken")
    write_list(
        session.out,
        form,
        found,
        found,
        lambda one: one.text,
        lambda _: screen.problem_lines(found, unknown, now_s),
    )
    return EXIT_FAILED if any(one.level == "broken" for one in found) else 0


@problems.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@form_option
@bus_command
async def dead(session: Session, limit: int, form: Form | None) -> None:
    """List dead letters: messages with the reason for which a service could not handle them."""
    from berthmaster.cli.problems import screen

    async with session.client() as berth:
        letters = await berth.dead(limit)
        now_s = berth.now()
        write_list(
            session.out,
            form,
            letters,
            [DeadRow.of(seen) for seen in letters],
            lambda row: str(row.sequence),
            lambda wide: screen.dead(letters, now_s, wide=wide),
        )


@problems.command()
@click.argument("cluster", type=CLUSTER, required=False, default="")
@form_option
@bus_command
async def cordons(session: Session, cluster: str, form: Form | None) -> None:
    """List cordons and drains: place, author, time, reason, jobs still there, unknown names."""
    from berthmaster.cli.fleet import screen

    async with session.client() as berth:
        reply = await berth.cordons(cluster)
        now_s = berth.now()
        write_list(
            session.out,
            form,
            reply,
            reply.cordons,
            screen.place,
            lambda _: screen.cordons(reply, now_s),
        )


class DeadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as a line of CSV."""

    sequence: int
    stored_at_s: float
    service: str
    subject: str
    workload: str
    reason: str
    body: str

    @classmethod
    def of(cls, seen: "SeenDead") -> "DeadRow":
        """Return the row, with the body as text where possible."""
        letter = seen.letter
        return cls(
            sequence=seen.sequence,
            stored_at_s=seen.stored_at_s,
            service=letter.service,
            subject=letter.subject,
            workload=letter.workload,
            reason=letter.reason,
            body=letter.body.decode(errors="replace"),
        )


async def _found(berth: "Client") -> tuple[list["Problem"], list[str]]:
    """Return all problems, and the failed checks."""
    parts = {
        "clusters": _clusters(berth),
        "dead letters": _letters(berth),
        "streams": _damage(berth),
    }
    answers = await asyncio.gather(*map(_in_time, parts.values()))
    found: list[Problem] = []
    unknown = []
    for name, answer in zip(parts, answers, strict=True):
        if isinstance(answer, str):
            unknown.append(f"{name}: {answer}")
        else:
            found += answer
    return found, unknown


async def _in_time(look: Awaitable[Iterable["Problem"]]) -> Iterable["Problem"] | str:
    from berthmaster.client import BerthError

    try:
        async with asyncio.timeout(LIMIT_S):
            return await look
    except BerthError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {LIMIT_S:.0f} s"


async def _clusters(berth: "Client") -> Iterable["Problem"]:
    from berthmaster.lib.engine.fleetview.fleet_problems import (
        of_cluster,
        of_cordons,
        of_gpus,
        of_nodes,
    )
    from berthmaster.lib.engine.fleetview.rows import FleetView
    from berthmaster.lib.messages.fleet import ClusterAlive

    view, facts = FleetView(), await berth.fleet()
    for seen in facts:
        view.take(seen)
    view.set_control(await berth.control())
    alive = [seen.fact for seen in facts if isinstance(seen.fact, ClusterAlive)]
    interval_s = {fact.cluster: fact.interval_s for fact in alive}
    rows = view.rows(berth.now())
    found = [one for row in rows for one in of_cluster(row, interval_s.get(row.cluster, 0.0))]
    return [
        *found,
        *(one for row in rows for one in of_gpus(row.cluster, view.faulty_gpus(row.cluster))),
        *(one for row in rows for one in of_cordons(view.cordons_of(row.cluster))),
        *(one for row in rows for one in of_nodes(row.cluster, view.nodes_of(row.cluster))),
    ]


async def _letters(berth: "Client") -> Iterable["Problem"]:
    from berthmaster.lib.engine.fleetview.fleet_problems import of_letters

    letters = await berth.dead(LETTERS_READ)
    newest = {one.letter.service: (one.stored_at_s, one.letter.reason) for one in letters}
    return list(of_letters(newest, berth.now()))


async def _damage(berth: "Client") -> Iterable["Problem"]:
    from berthmaster.client import UnavailableError
    from berthmaster.lib.engine.fleetview.fleet_problems import Problem
    from berthmaster.lib.event_log.damage import REMEDY
    from berthmaster.lib.event_log.marks import all_damage
    from berthmaster.lib.nats.errors import BusError

    try:
        found = await all_damage(berth.connection)
    except BusError as error:
        raise UnavailableError(str(error)) from error
    return [Problem("broken", why, detail=REMEDY) for why in found]
