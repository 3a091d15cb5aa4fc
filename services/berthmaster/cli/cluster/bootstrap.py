"""`berth cluster bootstrap`: manifests to apply in a worker, for `berth serve credentials`.

The command prints manifests and changes nothing. Their rights name the one account for this hub and
this cluster. So the manifests differ per worker and are not in deploy/.
"""

import asyncio
import sys
from pathlib import Path

import click

from berthmaster.cli.output.errors import complain
from berthmaster.cli.session import EXIT_UNREACHABLE, Output, kubernetes_work, usage
from berthmaster.lib.runtime.settings import EmptyMember, members
from berthmaster.lib.runtime.visible_text import pretty
from berthmaster.lib.supervisor.plan import KubeTarget, PlanError, kube_target


@click.command("bootstrap")
@click.argument("name")
@click.option(
    "--hub",
    metavar="CLUSTER",
    help="Worker cluster: [NAME=]CONTEXT or [NAME=]KUBECONFIG[:CONTEXT].",
)
@click.option("--hub-id", metavar="UID", help="UID of the hub's namespace kube-system, if known.")
@click.option(
    "--worker-namespace",
    default="berthmaster-multikueue",
    show_default=True,
    metavar="NS",
    help="Namespace of Berthmaster in the worker, as in BERTH_CREDENTIALS_WORKER_NAMESPACE.",
)
@click.option(
    "--frameworks",
    metavar="KINDS",
    help="Job frameworks, comma-separated, as in BERTH_CREDENTIALS_FRAMEWORKS.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one List as JSON instead of YAML.")
def bootstrap(
    name: str,
    hub: str | None,
    hub_id: str | None,
    worker_namespace: str,
    frameworks: str | None,
    as_json: bool,
) -> None:
    """Print the objects that give `berth serve credentials` access to the worker cluster NAME."""
    import yaml

    from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, FRAMEWORKS
    from berthmaster.hub.credentials.core.way_in import documents

    try:
        kinds = members(frameworks or "") or DEFAULT_FRAMEWORKS
    except EmptyMember as error:
        usage(f"--frameworks {frameworks!r}: {error}")
    if unknown := [one for one in kinds if one not in FRAMEWORKS]:
        usage(f"--frameworks {unknown[0]}: right are {', '.join(FRAMEWORKS)}")
    found = documents(hub_id or _identity(hub), name, namespace=worker_namespace, frameworks=kinds)
    if as_json:
        Output(as_json=True).write(pretty({"apiVersion": "v1", "kind": "List", "items": found}))
    else:
        sys.stdout.write(yaml.safe_dump_all(found, sort_keys=False))


def _identity(hub: str | None) -> str:
    """Return the hub's id, as the service will read it. Ends the command on failure."""
    try:
        target = kube_target(hub, Path.is_file) if hub else KubeTarget(name="hub")
    except PlanError as error:
        usage(str(error))
    with kubernetes_work():
        from berthmaster.lib.kube.errors import KubernetesError

        try:
            return asyncio.run(_read(target))
        except KubernetesError as error:
            complain(f"{error}")
            sys.exit(EXIT_UNREACHABLE)


async def _read(target: KubeTarget) -> str:
    from berthmaster.lib.kube.client import Client
    from berthmaster.lib.kube.config import from_kubeconfig
    from berthmaster.lib.runtime.log import Log

    access = await from_kubeconfig(target.kubeconfig, target.context)
    log = Log("cli", level="error")
    async with await Client.open(access, user_agent="berth", log=log) as client:
        return await client.uid()
