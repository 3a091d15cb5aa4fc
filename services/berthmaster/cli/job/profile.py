"""`berth profile`: a job's resource usage and bottleneck by attempt, or the usage of similar
jobs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from berthmaster.cli.completion import ANY
from berthmaster.cli.session import Session, bus_command, usage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.lib.messages.profile import AttemptProfile, LikeProfile, Profile, Spread

_BYTES: Final = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
_OUT_OF_MEMORY: Final = {
    ("log",): "the end of its log says so",
    ("log", "memory"): "the end of its log says so, and the GPU's memory was full",
}


@click.command()
@click.argument("workload", required=False, type=ANY)
@click.option("--like", metavar="WORKLOAD", type=ANY, help="Ended jobs like this one, together.")
@bus_command
async def profile(session: Session, workload: str | None, like: str | None) -> None:
    """Show usage and bottleneck of each attempt of a job.

    With --like, summarize all ended jobs of the same queue, shape and labels. The named job may
    still be pending.
    """
    from berthmaster.lib.messages.profile import ProfileRequest

    if (workload is None) == (like is None):
        usage("give one of WORKLOAD and --like WORKLOAD")
    async with session.client() as berth:
        request = ProfileRequest(id=workload or like or "", like=like is not None)
        reply = await berth.profile(request)
        session.out.document(reply, lambda: screen(reply))


def screen(reply: "Profile") -> "RenderableType":
    """Return the profile of each attempt, or of similar jobs."""
    from rich.console import Group

    from berthmaster.cli.output.terminal import safe

    parts: list[RenderableType] = [safe(f"{reply.tenant}/{reply.id}", style="bold")]
    for one in reply.attempts:
        parts += _attempt(one)
    if reply.like is not None:
        parts += _like(reply.like)
    parts += [safe(note, style="yellow") for note in reply.notes]
    return Group(*parts)


def _attempt(one: "AttemptProfile") -> "list[RenderableType]":
    from berthmaster.cli.output import amounts
    from berthmaster.cli.output.terminal import safe

    end = one.end or (f"running, {one.stage}" if one.stage else "running")
    head = f"Attempt {one.attempt} on {one.cluster}: {end}"
    if one.fault:
        head += f", {one.fault.replace('_', ' ')}"
        if why := _OUT_OF_MEMORY.get(one.evidence, ""):
            head += f" ({why})"
    measured = amounts.duration(one.measured_s)
    lines: list[RenderableType] = [
        safe(),
        safe(head, style="bold"),
        safe(f"Measured for {measured}: {amounts.many(one.gpus, 'GPU')}."),
        *_body(one.bound_by, one.shares, one.stages, one.metrics),
    ]
    if (results := one.results) is not None:
        text = f"Step {results.last_step:,}"
        if results.loss is not None:
            text += f", loss {results.loss:g}"
        if results.steps_per_s is not None:
            text += f", {results.steps_per_s:.3g} steps/s"
        lines.append(safe(f"{text}."))
    return lines


def _like(like: "LikeProfile") -> "list[RenderableType]":
    from berthmaster.cli.output import amounts
    from berthmaster.cli.output.terminal import safe

    same = "queue, shape and labels" if like.by == "labels" else "queue and shape"
    head = (
        f"{amounts.many(like.jobs, 'ended job')} of the same {same}, "
        f"{amounts.many(like.attempts, 'attempt')}: {amounts.counted(like.ends)}"
    )
    lines: list[RenderableType] = [safe(head)]
    if like.faults:
        lines.append(safe(f"Causes: {amounts.counted(like.faults)}"))
    lines += _body(like.bound_by, like.shares, like.stages, like.metrics)
    if like.steps_per_s is not None:
        lines.append(safe(f"Median {like.steps_per_s:.3g} steps/s."))
    return lines


def _body(
    bound_by: str,
    shares: Mapping[str, float],
    stages: Mapping[str, float],
    metrics: "Mapping[str, Spread]",
) -> "list[RenderableType]":
    from berthmaster.cli.output import amounts
    from berthmaster.cli.output.terminal import plain_table, safe

    lines: list[RenderableType] = []
    if bound_by:
        rests = ", ".join(f"{name} {amounts.percent(share)}" for name, share in shares.items())
        lines.append(safe(f"Bound by {bound_by} ({rests})."))
    if stages:
        spent = ", ".join(f"{name} {amounts.duration(s)}" for name, s in stages.items())
        lines.append(safe(f"Stages: {spent}."))
    if metrics:
        numbers = ("P50", "P95", "PEAK")
        table = plain_table("METRIC", *numbers, right=numbers)
        for name, spread in metrics.items():
            label, texts = _texts(name, (spread.p50, spread.p95, spread.peak))
            table.add_row(safe(label), *texts)
        lines.append(table)
    return lines


def _texts(name: str, values: tuple[float, ...]) -> tuple[str, list[str]]:
    """Return a metric's name for the screen, and its values with their unit."""
    for ending, unit in (("_percent", "%"), ("_w", " W"), ("_cores", "")):
        if name.endswith(ending):
            label = name.removesuffix(ending) if unit else name
            return label.replace("_", " "), [f"{value:.3g}{unit}" for value in values]
    if name.endswith("_mib"):
        label = name.removesuffix("_mib").replace("_", " ")
        return label, [f"{value / 1024:.2f} GiB" for value in values]
    label = name.removesuffix("_bytes_per_s").replace("_", " ")
    return label, [_rate(value) for value in values]


def _rate(value: float) -> str:
    for unit, size in _BYTES:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B/s"
