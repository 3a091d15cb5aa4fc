"""`berth tenant add | renew | remove | list`: the tenants that may connect to this bus.

A tenant has its own account and one credentials file, for its users and programs. A running server
learns of a change at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from berthmaster.cli.keys.folder import (
    Folder,
    FolderFailed,
    days_option,
    ends,
    folder_command,
    key_table,
    no_server,
    show,
)
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import Output
from berthmaster.lib.access.keys import creds_file, remove_user, sign_user
from berthmaster.lib.access.permissions import OF_TENANTS
from berthmaster.lib.nats.subjects import token

if TYPE_CHECKING:
    from rich.console import RenderableType

TENANT = "tenant"


class TenantKey(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    key: str  # the public part
    ends: str  # "" = never
    connected: bool


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of signing, without a secret."""

    tenant: str
    file: str
    ends: str
    server_told: bool


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    server_told: bool


@click.group()
def tenant() -> None:
    """Manage tenants' keys for this bus."""


def _user(name: str) -> str:
    return f"{TENANT}.{token(name)}"


def _sign(folder: Folder, output: Output, name: str, days: float, *, again: bool = False) -> int:
    user = _user(name)
    made = sign_user(folder.keys, user, days=days, again=again)
    notified = folder.notify(user)
    file = str(creds_file(folder.keys, user))
    signed = Signed(tenant=name, file=file, ends=ends(made.jwt), server_told=notified)
    show(output, signed, lambda: signed_screen(signed))
    return 0


@tenant.command()
@click.argument("name")
@days_option
@click.option(
    "--again",
    is_flag=True,
    help="Restore a removed tenant. It can read the jobs and event histories under its name.",
)
@folder_command
def add(folder: Folder, output: Output, *, name: str, days: float, again: bool) -> int:
    """Create an account and a credentials file for a tenant.

    The name of a removed tenant is refused without --again, because jobs, histories and Secrets of
    the removed tenant keep the name, and another team could read all of them.
    """
    user = _user(name)
    if creds_file(folder.keys, user).exists():
        raise FolderFailed(f"tenant {name!r} has a key already; `berth tenant renew` prolongs it")
    return _sign(folder, output, name, days, again=again)


@tenant.command()
@click.argument("name")
@days_option
@folder_command
def renew(folder: Folder, output: Output, *, name: str, days: float) -> int:
    """Sign a tenant's credentials again, with the same key."""
    folder.require_key(TENANT, name)
    return _sign(folder, output, name, days)


@tenant.command()
@click.argument("name")
@folder_command
def remove(folder: Folder, output: Output, *, name: str) -> int:
    """Revoke the keys of a tenant and its viewers. Their connections end at once."""
    folder.require_key(TENANT, name)
    user = _user(name)
    for role in OF_TENANTS:
        remove_user(folder.keys, f"{role}.{token(name)}")
    removed = Removed(tenant=name, server_told=folder.notify(user))
    show(output, removed, lambda: removed_screen(removed))
    return 0


@tenant.command("list")
@form_option
@folder_command
def list_(folder: Folder, output: Output, *, form: Form | None) -> int:
    """List tenants with a key."""
    connected = folder.connected_keys()
    keys = [
        TenantKey(
            tenant=name,
            key=key,
            ends=folder.ends(_user(name)),
            connected=not connected.isdisjoint({key, folder.account(_user(name))}),
        )
        for name, key in sorted(folder.users(TENANT).items())
    ]
    write_list(
        output,
        form,
        keys,
        keys,
        lambda one: one.tenant,
        lambda _: key_table("tenant", {one.tenant: one for one in keys}),
    )
    return 0


def signed_screen(signed: Signed) -> "RenderableType":
    from berthmaster.cli.output.terminal import safe

    until = f"until {signed.ends}" if signed.ends else "for ever"
    return safe(
        f"{signed.tenant} may connect {until}.{no_server(signed.server_told)}\n"
        f"Its credentials are {Path(signed.file)}, readable by you alone: hand over a copy."
    )


def removed_screen(removed: Removed) -> "RenderableType":
    from berthmaster.cli.output.terminal import safe

    return safe(
        f"{removed.tenant} comes in no more.{no_server(removed.server_told)} Its jobs keep "
        f"running: `berth cancel --tenant {removed.tenant}` ends them. They stay under its name: "
        "give that to no other team."
    )
