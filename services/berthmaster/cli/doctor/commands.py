"""`berth doctor`: problems between a hub, its workers and Berthmaster. Reads only.

Exit code 0: nothing blocks the requested mode. 1: something does. 2: wrong command line.
"""

import asyncio
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from berthmaster.cli.session import EXIT_FAILED, Output, kubernetes_work, usage
from berthmaster.lib.runtime.visible_text import pretty
from berthmaster.lib.supervisor.plan import KubeTarget, PlanError, kube_target

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.cli.doctor.facts import Mode, Without
    from berthmaster.cli.doctor.findings import Finding, Report
    from berthmaster.cli.doctor.reader import ClusterAccess

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "blocks": "red"}
SIGNS = {"ok": "ok", "note": "note", "warning": "warning", "blocks": "BLOCKS"}


@click.command()
@click.option(
    "--hub", metavar="CLUSTER", help="Hub: [NAME=]CONTEXT or [NAME=]KUBECONFIG[:CONTEXT]."
)
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="CLUSTER",
    help="Worker cluster, in the same form; may be repeated.",
)
@click.option(
    "--mode",
    type=click.Choice(["observe", "dispatch"]),
    default="observe",
    show_default=True,
    help=(
        "Mode of the hub to check for; dispatch needs what clears nominations, such as the "
        "policy or webhook of the chart."
    ),
)
@click.option(
    "--namespace",
    default="berth-system",
    show_default=True,
    metavar="NS",
    help="Namespace of the services' pods.",
)
@click.option(
    "--without",
    "without",
    multiple=True,
    metavar="W:NS/QUEUE",
    help=(
        "Queue that worker W lacks on purpose, such as berlin:ml/main or berlin:ml/*; may be "
        "repeated."
    ),
)
@click.option(
    "--self",
    "as_self",
    is_flag=True,
    help=(
        "Check the rights of these credentials, as `berth up` uses them, instead of the service"
        " accounts'."
    ),
)
@click.option(
    "--upgrade",
    is_flag=False,
    flag_value=version("berthmaster"),
    metavar="[VERSION]",
    help="Check the versions of the pods instead, and print the next step of an upgrade to "
    "VERSION; default: the version of this command.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def doctor(
    hub: str | None,
    workers: tuple[str, ...],
    mode: "Mode",
    namespace: str,
    without: tuple[str, ...],
    as_self: bool,
    upgrade: str | None,
    as_json: bool,
) -> None:
    """Check a hub and its workers, without changing anything. For each missing piece, print the
    exact change and its undoing."""
    if not hub and not workers:
        usage("name a cluster to look at: --hub CONTEXT, --worker CONTEXT, or both")
    output = Output(as_json=as_json)
    try:
        at_hub = _place(kube_target(hub, Path.is_file)) if hub else None
        at_workers = [_place(kube_target(text, Path.is_file)) for text in workers]
    except PlanError as error:
        usage(str(error))
    left_out = _without(without, {worker.name for worker in at_workers})
    with kubernetes_work():
        from berthmaster.cli.doctor.core import diagnose
        from berthmaster.cli.doctor.reader import survey

        if upgrade is not None:
            report = asyncio.run(_next_step(at_hub, at_workers, upgrade, namespace))
        else:
            read = survey(
                at_hub,
                at_workers,
                mode=mode,
                namespace=namespace,
                now_s=time.time(),
                as_self=as_self,
                without=left_out,
            )
            report = diagnose(asyncio.run(read))
    if as_json:
        output.write(pretty(report))
    else:
        output.console.print(screen(report), soft_wrap=True)
    sys.exit(0 if report.ready else EXIT_FAILED)


async def _next_step(
    hub: "ClusterAccess | None", workers: "list[ClusterAccess]", text: str, namespace: str
) -> "Report":
    from berthmaster.cli.doctor import upgrade
    from berthmaster.cli.doctor.facts import HubFacts, WorkerFacts
    from berthmaster.cli.doctor.reader import our_pods

    target = upgrade.parse_version(text)
    if target is None:
        usage(f"--upgrade {text!r}: right is a version such as 0.2.0")
    reading = [our_pods(one, WorkerFacts, namespace) for one in workers]
    agents = await asyncio.gather(*reading)
    at_hub = await our_pods(hub, HubFacts, namespace) if hub is not None else None
    return upgrade.diagnose(at_hub, agents, target, namespace)


def _without(texts: tuple[str, ...], workers: set[str]) -> "list[Without]":
    from berthmaster.cli.doctor.facts import Without

    found = []
    for text in texts:
        try:
            one = Without.parse(text)
        except ValueError as error:
            usage(f"--without {error}")
        if one.worker not in workers:
            known = ", ".join(sorted(workers)) or "none"
            usage(f"--without {text}: there is no --worker of that name; named are: {known}")
        found.append(one)
    return found


def _place(target: KubeTarget) -> "ClusterAccess":
    from berthmaster.cli.doctor.reader import ClusterAccess

    return ClusterAccess(name=target.name, kubeconfig=target.kubeconfig, context=target.context)


def screen(report: "Report") -> "RenderableType":
    """Return a line per finding, followed by the remedies."""
    from rich.console import Group

    from berthmaster.cli.output import amounts
    from berthmaster.cli.output.terminal import safe

    lines: list[RenderableType] = []
    where = ""
    for finding in report.findings:
        if finding.where != where:
            where = finding.where
            lines += [safe(), safe(where, style="bold")]
        lines += _finding(finding)
    blocks = sum(finding.level == "blocks" for finding in report.findings)
    warnings = sum(finding.level == "warning" for finding in report.findings)
    goal = f"the {report.mode}" if report.mode.startswith("upgrade") else f"the mode {report.mode}"
    verdict = (
        f"Nothing blocks {goal}."
        if report.ready
        else f"{amounts.many(blocks, 'finding')} in the way of {goal}."
    )
    more = f" {amounts.many(warnings, 'warning')}." if warnings else ""
    lines += [safe(), safe(verdict + more, style="green" if report.ready else "red")]
    return Group(*lines)


def _finding(finding: "Finding") -> list["RenderableType"]:
    from berthmaster.cli.output.terminal import safe

    head = safe(f"  {SIGNS[finding.level]:<8}", style=STYLES[finding.level])
    head.append_text(safe(finding.what))
    lines: list[RenderableType] = [head]
    if finding.means:
        lines.append(safe(f"          {finding.means}"))
    for title, text in (("change", finding.change), ("undo", finding.undo)):
        if text:
            lines.append(safe(f"          {title}:", style="bold"))
            lines += [safe(f"            {line}") for line in text.splitlines()]
    return lines
