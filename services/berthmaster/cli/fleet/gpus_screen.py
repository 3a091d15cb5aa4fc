"""The GPUs that there are, on the screen."""

from rich.console import Group, RenderableType

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.messages.api import GpusReply, GpuStock


def table(reply: GpusReply, *, wide: bool = False) -> RenderableType:
    """One model a line, those with the most free ones first."""
    if not reply.models:
        return safe("No GPU has been reported yet.")
    more = ("NODE MAX", "OPEN", "CLUSTERS", "MEMORY") if wide else ()
    numbers = ("FREE", "TOTAL", "WAIT", "PRICE/H", *more)
    found = plain_table("MODEL", *numbers, right=numbers)
    for one in reply.models:
        cells = [_free(one), str(one.gpus), _wait(one), _price(one)]
        if wide:
            memory = f"{amounts.number(one.memory_mib / 1024)} GiB" if one.memory_mib else "?"
            cells += [str(one.most_on_a_node), str(one.open_gpus), str(one.clusters), memory]
        found.add_row(safe(one.model or "(not told)"), *cells)
    notes = [safe(f"{one.model}: {one.why_not}", "yellow") for one in reply.models if one.why_not]
    legend = safe(
        f"WAIT is as if jobs ended as they said and nobody else came; "
        f"{amounts.many(reply.waiting, 'job')} wait in all.",
        style="dim",
    )
    return Group(found, safe(), *notes, legend)


def _free(one: GpuStock) -> str:
    """Whole ones, and what else is free in parts of others."""
    parts = one.free_gpu_milli / 1000 - one.free_gpus
    return f"{one.free_gpus} + {amounts.number(parts)}" if parts > 0 else str(one.free_gpus)


def _wait(one: GpuStock) -> str:
    if one.why_not:
        return "never"
    if one.expected_wait_s is None:
        return "?"
    return "none" if not one.expected_wait_s else f"~{amounts.age(one.expected_wait_s)}"


def _price(one: GpuStock) -> str:
    if one.price_least is None or one.price_most is None:
        return "-"
    least, most = f"{one.price_least:g}", f"{one.price_most:g}"
    return least if least == most else f"{least}-{most}"
