"""`berth cluster credentials`: Kueue's access to the workers, its end, and its errors.

Reads one ConfigMap of the hub, written by `berth serve credentials`, and no Secret. Exit code 0:
every cluster has a token that should work, and nothing fails. Exit code 1: a cluster has none, or
the ConfigMap is empty or missing.
"""

import asyncio
import functools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, EXIT_UNREACHABLE, Output, kubernetes_work, usage
from berthmaster.lib.supervisor.plan import KubeTarget, PlanError, kube_target

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.hub.credentials.core.status import Line


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: str
    ready: bool
    draining: bool
    by: str
    expires_at: str
    renew_at: str
    since: str
    message: str

    @classmethod
    def of(cls, cluster: str, line: "Line") -> "ClusterAccess":
        return cls(cluster=cluster, **msgspec.structs.asdict(line))


@click.command("credentials")
@click.option(
    "--hub", metavar="CLUSTER", help="Cluster: [NAME=]CONTEXT or [NAME=]KUBECONFIG[:CONTEXT]."
)
@click.option(
    "--namespace",
    default="berth-credentials",
    show_default=True,
    metavar="NS",
    help="Namespace of the services' pods.",
)
@form_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def credentials(hub: str | None, namespace: str, form: Form | None, as_json: bool) -> None:
    """Show the state of Kueue's access to each worker, as reported by `berth serve credentials`."""
    try:
        target = kube_target(hub, Path.is_file) if hub else KubeTarget(name="hub")
    except PlanError as error:
        usage(str(error))
    with kubernetes_work():
        from berthmaster.lib.kube.errors import KubernetesError

        try:
            lines, more = asyncio.run(read(target, namespace))
        except KubernetesError as error:
            complain(f"{error}")
            sys.exit(EXIT_UNREACHABLE)
    rows = [ClusterAccess.of(name, one) for name, one in sorted(lines.items())]
    output = Output(as_json=as_json)
    table = functools.partial(screen, lines, more, time.time())
    write_list(output, form, lines, rows, lambda row: row.cluster, lambda _: table())
    good = bool(lines) and all(one.ready and not one.message for one in lines.values())
    sys.exit(0 if good else EXIT_FAILED)


async def read(target: KubeTarget, namespace: str) -> tuple[dict[str, "Line"], int]:
    """Return the clusters by name, and the number of clusters not shown. Raises KubernetesError."""
    from berthmaster.hub.credentials.core import status
    from berthmaster.lib.kube.client import Client
    from berthmaster.lib.kube.config import from_kubeconfig
    from berthmaster.lib.kube.errors import BadAnswer, NotFound
    from berthmaster.lib.kube.resources import CONFIG_MAPS
    from berthmaster.lib.runtime.log import Log

    access = await from_kubeconfig(target.kubeconfig, target.context)
    log = Log("cli", level="error")
    path = CONFIG_MAPS.path(namespace=namespace, name=status.NAME)
    async with await Client.open(access, user_agent="berth", log=log) as client:
        try:
            found = await client.get(path, status.ConfigMap)
        except NotFound:
            return {}, 0
    try:
        return status.parse(found.data or {})
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"{path} is not what `berth serve credentials` writes: {error}") from None


def screen(lines: "dict[str, Line]", more: int, now_s: float) -> "RenderableType":
    """Return a table with a row per cluster."""
    from rich.console import Group

    from berthmaster.cli.output.terminal import plain_table, safe
    from berthmaster.lib.kube.objects import seconds

    if not lines:
        return safe("Nothing is shown of any cluster: does `berth serve credentials` run?")
    table = plain_table("CLUSTER", "STATE", "WORKS", "BY", "EXPIRES IN", "MESSAGE")
    for name, one in sorted(lines.items()):
        left_s = seconds(one.expires_at) - now_s if one.expires_at else None
        table.add_row(
            safe(name),
            safe(one.state, style="" if one.ready else "yellow"),
            "yes" if one.ready else "no",
            one.by or "-",
            "-" if left_s is None else _left(left_s),
            safe(one.message),
        )
    rest = [safe(f"… and {more} more")] if more else []
    return Group(table, *rest)


def _left(left_s: float) -> str:
    """Return the remaining time in the largest useful unit."""
    if left_s <= 0:
        return "over"
    for unit, size_s in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if left_s >= 2 * size_s:
            return f"{left_s / size_s:.0f}{unit}"
    return f"{left_s:.0f}s"
