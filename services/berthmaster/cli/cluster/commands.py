"""`berth cluster add | renew | remove | list`: the worker clusters that may connect to this bus.

A cluster has one user, `agent.NAME`. The credentials are created here and carried to the cluster in
a Secret. A running server learns of them at once. The credentials are written to a file for its
owner alone, or to standard output on request, and never to a log, a table or an error.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from berthmaster.cli.cluster import secret
from berthmaster.cli.cluster.bootstrap import bootstrap
from berthmaster.cli.cluster.credentials import credentials
from berthmaster.cli.keys.folder import (
    Folder,
    FolderFailed,
    days_option,
    folder_command,
    key_table,
    no_server,
    show,
)
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import Output, option_group
from berthmaster.lib.access.certificates import names_of
from berthmaster.lib.access.keys import creds_file, remove_user, sign_user
from berthmaster.lib.access.permissions import SENTINEL
from berthmaster.lib.nats.subjects import token
from berthmaster.lib.runtime.settings import EmptyMember, members

if TYPE_CHECKING:
    from rich.console import RenderableType

AGENT: Final = "agent"
NODES: Final = "telemetry"  # user of a cluster's nodes, with far fewer rights than its agent
NAMESPACE: Final = "berth-system"


class ClusterKey(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    key: str  # the public part
    ends: str  # end of its JWT; "" = never
    connected: bool


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `cluster add`, without a secret."""

    cluster: str
    key: str
    url: str
    namespace: str
    file: str  # "" = the Secret went to standard output
    ends: str  # end of its JWT
    apply: list[str]  # commands, in order
    server_told: bool


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `cluster remove`."""

    cluster: str
    server_told: bool


@click.group()
def cluster() -> None:
    """Manage worker clusters' keys for this bus."""


cluster.add_command(bootstrap)
cluster.add_command(credentials)


def url_for_agents(folder: Folder, given: str | None) -> str:
    """Return the URL for agents. Raises FolderFailed for an unusable URL."""
    url = given or folder.external_url
    if not url or not folder.ca_file.exists():
        raise FolderFailed(
            "this bus is for its own machine alone: start it with --external HOST, a name or "
            "address that the worker clusters can reach, so that it is served over TLS"
        )
    for one in url.split(","):
        parts = urlsplit(one.strip())
        if parts.scheme != "tls" or not parts.hostname:
            raise FolderFailed(f"--url {one}: right is tls://HOST:PORT; never in plain text")
        names = names_of(folder.certificate)
        if parts.hostname not in names:
            raise FolderFailed(
                f"--url {one}: the server's certificate is for {', '.join(names)}; "
                f"start it with --external {parts.hostname} too"
            )
    return url


# Settings and destination of the Secret.
_secret_options = option_group(
    click.option(
        "--namespaces",
        default="default",
        show_default=True,
        metavar="A,B,…",
        help="Namespaces of the cluster in which jobs may be created.",
    ),
    click.option(
        "--namespace",
        default=NAMESPACE,
        show_default=True,
        metavar="NS",
        help="Namespace of the cluster's agent.",
    ),
    click.option(
        "--url",
        metavar="URL",
        help="Address of the bus, tls://HOST:PORT. [default: --external of the bus]",
    ),
    click.option(
        "--login",
        is_flag=True,
        help="Write no credentials: the agent logs in with its pod's token.",
    ),
    click.option(
        "--nodes",
        is_flag=True,
        help="Write the Secret of the telemetry agents on its nodes, with their own key, instead.",
    ),
    click.option("--output", "file", type=click.Path(path_type=Path), metavar="FILE"),
    click.option(
        "--stdout", is_flag=True, help="Write the Secret to standard output, for kubectl apply."
    ),
    days_option,
)


@cluster.command()
@click.argument("name")
@_secret_options
@click.option(
    "--again",
    is_flag=True,
    help="Bring back a cluster that was removed. Its agent takes over the jobs under its name.",
)
@folder_command
def add(folder: Folder, output: Output, *, name: str, days: float, **flags: Any) -> int:
    """Create a key for a worker cluster, and a Secret with the key.

    For a cluster with a key, the Secret is unchanged. The name of a removed cluster is refused
    without --again, because jobs and facts keep the name, and another cluster could report on
    these.
    """
    return _hand_over(folder, output, name, days, sign=False, **flags)


@cluster.command()
@click.argument("name")
@_secret_options
@folder_command
def renew(folder: Folder, output: Output, *, name: str, days: float, **flags: Any) -> int:
    """Sign a cluster's credentials again, with the same key, and write the Secret."""
    folder.require_key(AGENT, name)
    return _hand_over(folder, output, name, days, sign=True, again=False, **flags)


def _hand_over(
    folder: Folder,
    output: Output,
    name: str,
    days: float,
    *,
    sign: bool,
    again: bool,
    namespaces: str,
    namespace: str,
    url: str | None,
    login: bool,
    nodes: bool,
    file: Path | None,
    stdout: bool,
) -> int:
    if nodes and login:
        raise FolderFailed("--nodes and --login: the agents on nodes have a key and no token")
    user = f"{NODES if nodes else AGENT}.{token(name)}"
    try:
        allowed = members(namespaces)
    except EmptyMember as error:
        raise FolderFailed(f"--namespaces {namespaces!r}: {error}; right is A,B") from error
    if not allowed:
        raise FolderFailed(f"--namespaces {namespaces!r}: right is at least one, such as ml")
    where = url_for_agents(folder, url)
    creds = creds_file(folder.keys, user)
    handed_over = creds_file(folder.keys, SENTINEL) if login else creds
    if login and not handed_over.exists():
        raise FolderFailed(
            "--login: no login service belongs to this bus; it is started with a mapping "
            "(`berth up --login FILE`, hub.services={login} of the chart)"
        )
    if sign or not creds.exists():
        sign_user(folder.keys, user, days=days, again=again)
    notified = folder.notify(user)
    ca = folder.ca_file.read_text()
    if nodes:
        manifest = secret.manifest_of_nodes(cluster=name, url=where, creds=creds.read_text(), ca=ca)
    else:
        manifest = secret.manifest(
            cluster=name,
            namespaces=allowed,
            namespace=namespace,
            url=where,
            creds=handed_over.read_text(),
            login=login,
            ca=ca,
        )
    if stdout:
        sys.stdout.write(manifest)
        sys.stdout.flush()
    else:
        called = f"{token(name)}-nodes.yaml" if nodes else f"{token(name)}.yaml"
        file = file or folder.path / "clusters" / called
        secret.write(file, manifest)
    apply: list[str] = []
    if file is not None and not stdout:
        apply = secret.commands(name, file, namespace, allowed, login=login)
        if nodes:
            apply = secret.commands_of_nodes(name, namespace, file)
    added = Added(
        cluster=name,
        key=folder.users(NODES if nodes else AGENT)[name],
        url=where,
        namespace=secret.TELEMETRY_NAME if nodes else namespace,
        file="" if stdout else str(file),
        ends=folder.ends(user),
        apply=apply,
        server_told=notified,
    )
    if stdout:
        output.say(f"{name} may connect to {where}.{no_server(notified)}")
    else:
        show(output, added, lambda: added_screen(added))
    return 0


@cluster.command()
@click.argument("name")
@folder_command
def remove(folder: Folder, output: Output, *, name: str) -> int:
    """Revoke a cluster's key. The agent is disconnected at once."""
    folder.require_key(AGENT, name)
    user = f"{AGENT}.{token(name)}"
    remove_user(folder.keys, f"{NODES}.{token(name)}")
    remove_user(folder.keys, user)
    removed = Removed(cluster=name, server_told=folder.notify(user))
    show(output, removed, lambda: removed_screen(removed))
    return 0


@cluster.command("list")
@form_option
@folder_command
def list_(folder: Folder, output: Output, *, form: Form | None) -> int:
    """List clusters with a key."""
    connected = folder.connected_keys()
    keys = [
        ClusterKey(
            cluster=name,
            key=key,
            ends=folder.ends(f"{AGENT}.{token(name)}"),
            connected=not connected.isdisjoint({key, folder.account(f"{AGENT}.{token(name)}")}),
        )
        for name, key in sorted(folder.users(AGENT).items())
    ]
    write_list(
        output,
        form,
        keys,
        keys,
        lambda one: one.cluster,
        lambda _: key_table("cluster", {one.cluster: one for one in keys}),
    )
    return 0


def added_screen(added: Added) -> "RenderableType":
    from rich.console import Group

    from berthmaster.cli.output.terminal import safe

    until = added.ends or "they are removed"
    lines = [
        f"{added.cluster} may connect to {added.url}.{no_server(added.server_told)}",
        f"Its credentials are in {added.file}, readable by you alone, until {until}. There:",
        "",
        *(f"  {command}" for command in added.apply),
    ]
    return Group(*(safe(line) for line in lines))


def removed_screen(removed: Removed) -> "RenderableType":
    from berthmaster.cli.output.terminal import safe

    return safe(
        f"{removed.cluster} comes in no more.{no_server(removed.server_told)} Jobs that run "
        f"there keep running, unseen: `berth lost {removed.cluster}` gives them up. They stay "
        "under its name: give that to no other cluster."
    )
