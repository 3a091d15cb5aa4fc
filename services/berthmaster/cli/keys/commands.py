"""`berth keys sign | revoke`: credentials of watchers, viewers and stewards, and their
revocation."""

import click

from berthmaster.cli.keys.folder import (
    Folder,
    FolderFailed,
    days_option,
    ends,
    folder_command,
    no_server,
)
from berthmaster.cli.session import Output
from berthmaster.lib.access.keys import creds_file, remove_user, sign_user
from berthmaster.lib.nats.subjects import token


@click.group()
def keys() -> None:
    """Keys of the bus."""


@keys.command()
@click.argument("user")
@folder_command
def revoke(folder: Folder, output: Output, *, user: str) -> int:
    """Revoke the key of a user of the bus, such as operator.

    A service gets a new key at the next start of the bus.
    """
    if not remove_user(folder.keys, user):
        raise FolderFailed(f"{creds_file(folder.keys, user)}: there is no such file")
    notified = folder.notify(user)
    output.document(
        {"user": user, "server_told": notified}, lambda: f"{user} is out.{no_server(notified)}"
    )
    return 0


@keys.command()
@click.argument("user")
@days_option
@folder_command
def sign(folder: Folder, output: Output, *, user: str, days: float) -> int:
    """Create or renew credentials. watcher reads all, viewer.TENANT reads one tenant, steward ends
    jobs and sets cordons, dashboard is for a dashboard on another machine."""
    role, _, part = user.partition(".")
    if user not in ("watcher", "steward", "dashboard") and not (role == "viewer" and part):
        raise FolderFailed(
            f"{user}: right are watcher, steward, dashboard and viewer.TENANT; tenants and "
            "clusters have commands of their own, `berth tenant` and `berth cluster`"
        )
    name = f"{role}.{token(part)}" if part else user
    made = sign_user(folder.keys, name, days=days)
    file = creds_file(folder.keys, name)
    notified = folder.notify(name)
    document = {"user": user, "file": str(file), "ends": ends(made.jwt), "server_told": notified}
    output.document(
        document,
        lambda: (
            f"{user} may connect until {ends(made.jwt)}.{no_server(notified)}\nCredentials: {file}"
        ),
    )
    return 0
