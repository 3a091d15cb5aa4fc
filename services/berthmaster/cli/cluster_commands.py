"""`berth cluster add | remove | list`: which worker clusters may connect to this bus.

A cluster has one user, `agent.NAME`, whose key is made here and taken there in a Kubernetes Secret.
A running server learns of it without a restart. The seed is written to a file for its owner alone,
or to standard output where that was asked for; never to a log, a table or an error.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from berthmaster.bus.certificates import CertificatesError, names_of
from berthmaster.bus.embedded import ServerFailed
from berthmaster.bus.keys import KeysError, make_keys, public_keys, remove_key, seed_file
from berthmaster.bus.permissions import UnknownUser
from berthmaster.bus.reload import connected_keys, reload_servers
from berthmaster.bus.subjects import SubjectError, text, token
from berthmaster.cli import secret
from berthmaster.cli.bootstrap_command import bootstrap
from berthmaster.cli.credentials_command import credentials
from berthmaster.cli.session import EXIT_FAILED, Output
from berthmaster.cli.target import find_connection
from berthmaster.supervisor.faults import fault_text
from berthmaster.supervisor.folder import KEYS_FOLDER, TLS_FOLDER, read_external

if TYPE_CHECKING:
    from rich.console import RenderableType

AGENT: Final = "agent."
NAMESPACE: Final = "berth-system"
FAILURES: Final = (KeysError, ServerFailed, CertificatesError, UnknownUser, SubjectError, OSError)


class ClusterFailed(Exception):
    """It cannot be done; the text says what would help."""


class ClusterKey(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster that has a key."""

    cluster: str
    key: str  # the public part
    connected: bool


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster add` did, without a secret."""

    cluster: str
    key: str
    url: str
    namespace: str
    file: str  # "" = the Secret went to standard output
    apply: list[str]  # commands, in order
    server_reloaded: bool


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster remove` did."""

    cluster: str
    server_reloaded: bool


@click.group()
def cluster() -> None:
    """Which worker clusters may connect to this bus."""


cluster.add_command(bootstrap)
cluster.add_command(credentials)


def _common(function: Callable[..., int]) -> Callable[..., None]:
    """The flags of all three, and errors as one line."""

    @click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Data folder of the `berth up` or hub; else BERTH_DATA, else the one that runs here.",
    )
    @click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
    @functools.wraps(function)
    def command(data: Path | None, as_json: bool, **flags: Any) -> None:
        output = Output(as_json=as_json)
        try:
            code = function(_Folder.find(data), output, **flags)
        except (ClusterFailed, *FAILURES) as error:
            text = fault_text(error)
            if as_json:
                output.line({"error": {"code": "failed", "message": text}})
            sys.stderr.write(f"berth: {text}\n")
            code = EXIT_FAILED
        sys.exit(code)

    return command


class _Folder:
    """The data folder of a bus of ours."""

    def __init__(self, path: Path, external_url: str) -> None:
        self.path = path
        self.external_url = external_url
        self.keys = path / KEYS_FOLDER
        self.ca_file = path / TLS_FOLDER / "ca.crt"
        self.certificate = path / TLS_FOLDER / "server.crt"

    @classmethod
    def find(cls, data: Path | None) -> "_Folder":
        found = find_connection(data, os.environ, Path.cwd())
        named = data or (Path(os.environ["BERTH_DATA"]) if "BERTH_DATA" in os.environ else None)
        path = found[0].parent if found else named
        if path is None or not (path / KEYS_FOLDER).is_dir():
            raise ClusterFailed(
                f"no keys in {path or 'any folder that was found'}: name the data folder of "
                "`berth up` or `berth serve hub` with --data"
            )
        return cls(path.absolute(), read_external(path))

    def agents(self) -> dict[str, str]:
        """Clusters with their public keys."""
        users = public_keys(self.keys)
        return {
            text(user.removeprefix(AGENT)): key
            for user, key in users.items()
            if user.startswith(AGENT)
        }

    def reload(self) -> bool:
        """Whether a server was there to read its users anew."""
        return reload_servers(self.path) > 0

    def url_for_agents(self, given: str | None) -> str:
        """Where agents will connect. Raises ClusterFailed for what cannot work."""
        url = given or self.external_url
        if not url or not self.ca_file.exists():
            raise ClusterFailed(
                "this bus is for its own machine alone: start it with --external HOST, a name or "
                "address that the worker clusters can reach, so that it is served over TLS"
            )
        for one in url.split(","):
            parts = urlsplit(one.strip())
            if parts.scheme != "tls" or not parts.hostname:
                raise ClusterFailed(f"--url {one}: right is tls://HOST:PORT; never in plain text")
            names = names_of(self.certificate)
            if parts.hostname not in names:
                raise ClusterFailed(
                    f"--url {one}: the server's certificate is for {', '.join(names)}; "
                    f"start it with --external {parts.hostname} too"
                )
        return url


@cluster.command()
@click.argument("name")
@click.option(
    "--namespaces",
    default="default",
    show_default=True,
    metavar="A,B,…",
    help="Namespaces there that jobs may be made in.",
)
@click.option(
    "--namespace", default=NAMESPACE, show_default=True, metavar="NS", help="Of its agent."
)
@click.option("--url", metavar="URL", help="tls://HOST:PORT; else what --external of the bus says.")
@click.option("--output", "file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--stdout", is_flag=True, help="The Secret to standard output, for kubectl apply.")
@_common
def add(
    folder: _Folder,
    output: Output,
    *,
    name: str,
    namespaces: str,
    namespace: str,
    url: str | None,
    file: Path | None,
    stdout: bool,
) -> int:
    """Make a key for a worker cluster, and the Secret that takes it there."""
    user = f"{AGENT}{token(name)}"
    allowed = [part.strip() for part in namespaces.split(",") if part.strip()]
    if not allowed:
        raise ClusterFailed(f"--namespaces {namespaces!r}: right is at least one, such as ml")
    where = folder.url_for_agents(url)
    key = make_keys(folder.keys, [user])[user]
    reloaded = folder.reload()
    manifest = secret.manifest(
        cluster=name,
        namespaces=allowed,
        namespace=namespace,
        url=where,
        seed=seed_file(folder.keys, user).read_text().strip(),
        ca=folder.ca_file.read_text(),
    )
    if stdout:
        sys.stdout.write(manifest)
        sys.stdout.flush()
    else:
        file = file or folder.path / "clusters" / f"{token(name)}.yaml"
        secret.write(file, manifest)
    added = Added(
        cluster=name,
        key=key,
        url=where,
        namespace=namespace,
        file="" if stdout else str(file),
        apply=[] if stdout else secret.commands(name, file or Path(), namespace, allowed),
        server_reloaded=reloaded,
    )
    if stdout:
        output.say(f"{name} may connect to {where}.{_unread(reloaded)}")
    else:
        _show(output, added, lambda: added_screen(added))
    return 0


@cluster.command()
@click.argument("name")
@_common
def remove(folder: _Folder, output: Output, *, name: str) -> int:
    """Take a cluster's key back: its agent is disconnected at once and comes in no more."""
    if not remove_key(folder.keys, f"{AGENT}{token(name)}"):
        known = ", ".join(sorted(folder.agents())) or "none"
        raise ClusterFailed(f"no cluster {name!r} has a key here; those that have: {known}")
    removed = Removed(cluster=name, server_reloaded=folder.reload())
    _show(output, removed, lambda: removed_screen(removed))
    return 0


@cluster.command("list")
@_common
def list_(folder: _Folder, output: Output) -> int:
    """List the clusters that have a key."""
    connected = connected_keys(folder.path)
    keys = [
        ClusterKey(cluster=name, key=key, connected=key in connected)
        for name, key in sorted(folder.agents().items())
    ]
    output.document(keys, lambda: list_screen(keys))
    return 0


def _show(output: Output, value: object, screen: Callable[[], "RenderableType"]) -> None:
    """Like ``output.document``, but what is to be copied is never broken into lines."""
    if output.as_json:
        output.document(value, screen)
    else:
        output.console.print(screen(), soft_wrap=True)


def _unread(reloaded: bool) -> str:
    return "" if reloaded else " No server runs on this folder now: it learns of it when it starts."


def added_screen(added: Added) -> "RenderableType":
    """What was made, and what to do with it."""
    from rich.console import Group

    from berthmaster.cli.render.terminal import safe

    lines = [
        f"{added.cluster} may connect to {added.url}.{_unread(added.server_reloaded)}",
        f"Its key is in {added.file}, readable by you alone. In the worker cluster:",
        "",
        *(f"  {command}" for command in added.apply),
    ]
    return Group(*(safe(line) for line in lines))


def removed_screen(removed: Removed) -> "RenderableType":
    """What that means for what runs."""
    from berthmaster.cli.render.terminal import safe

    return safe(
        f"{removed.cluster} comes in no more.{_unread(removed.server_reloaded)} Jobs that run "
        f"there keep running, unseen: `berth lost {removed.cluster}` gives them up."
    )


def list_screen(keys: list[ClusterKey]) -> "RenderableType":
    """The table."""
    from berthmaster.cli.render.terminal import plain_table, safe

    if not keys:
        return safe("No cluster has a key yet: berth cluster add NAME")
    table = plain_table("CLUSTER", "CONNECTED", "PUBLIC KEY", right=())
    for key in keys:
        table.add_row(safe(key.cluster), "yes" if key.connected else "no", safe(key.key))
    return table
