"""`berth keys migrate | sign | revoke`: a folder from before accounts; who may look; who is out."""

import sys
from pathlib import Path

import click

from berthmaster.bus.claims import STREAMS
from berthmaster.bus.keys import (
    KeysError,
    account_key,
    creds_file,
    drop_old_form,
    migrate_keys,
    remove_user,
    sign_user,
)
from berthmaster.bus.permissions import UnknownUser
from berthmaster.bus.subjects import token
from berthmaster.cli.complain import complain
from berthmaster.cli.keys_folder import (
    Folder,
    FolderFailed,
    days_option,
    ends,
    folder_command,
    unheard,
)
from berthmaster.cli.session import EXIT_FAILED, Output
from berthmaster.supervisor.folder import KEYS_FOLDER, AlreadyRunning, FolderLock, FolderUnusable

OLD_ACCOUNT = "BERTH"


@click.group()
def keys() -> None:
    """Keys of the bus."""


@keys.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="BERTH_DATA",
    default=Path(".berth"),
    show_default=True,
    metavar="FOLDER",
    help="Data folder of the `berth up` or hub.",
)
def migrate(data: Path) -> None:
    """Carry a folder from before accounts over, while its bus is stopped.

    Users keep their keys and get credentials, messages stay where they are under the name of their
    account. It can be called again if it was ended half-way.
    """
    try:
        with FolderLock(data):
            said = carry_over(data)
    except (KeysError, UnknownUser, AlreadyRunning, FolderUnusable) as error:
        complain(f"{error}")
        sys.exit(EXIT_FAILED)
    except OSError as error:
        complain(f"{error.filename or data}: {error.strerror}")
        sys.exit(EXIT_FAILED)
    sys.stdout.write(f"{said}\n")


@keys.command()
@click.argument("user")
@folder_command
def revoke(folder: Folder, output: Output, *, user: str) -> int:
    """Cut off a user of the bus, such as operator, and forget its key.

    A service gets a new one when the bus is started the next time.
    """
    if not remove_user(folder.keys, user):
        raise FolderFailed(f"{creds_file(folder.keys, user)}: there is no such file")
    told = folder.tell(user)
    output.document({"user": user, "server_told": told}, lambda: f"{user} is out.{unheard(told)}")
    return 0


@keys.command()
@click.argument("user")
@days_option
@folder_command
def sign(folder: Folder, output: Output, *, user: str, days: float) -> int:
    """Make or renew credentials for who looks: watcher (at all), viewer.TENANT (at a tenant's), for
    steward (who ends anybody's jobs, and cordons), or for a dashboard that runs elsewhere."""
    role, _, part = user.partition(".")
    if user not in ("watcher", "steward", "dashboard") and not (role == "viewer" and part):
        raise FolderFailed(
            f"{user}: right are watcher, steward, dashboard and viewer.TENANT; tenants and "
            "clusters have commands of their own, `berth tenant` and `berth cluster`"
        )
    name = f"{role}.{token(part)}" if part else user
    made = sign_user(folder.keys, name, days=days)
    file = creds_file(folder.keys, name)
    told = folder.tell(name)
    document = {"user": user, "file": str(file), "ends": ends(made.jwt), "server_told": told}
    output.document(
        document,
        lambda: f"{user} may connect until {ends(made.jwt)}.{unheard(told)}\nCredentials: {file}",
    )
    return 0


def carry_over(data: Path) -> str:
    """Keys, then messages, then the old files, so that it can begin again; what was done. Raises
    KeysError, OSError."""
    if any(each.is_dir() for each in data.glob(f"server-*/jetstream/jetstream/{OLD_ACCOUNT}")):
        raise KeysError(
            f"{data} is of several servers, whose agreement names the account of before: with the "
            "version that made it, `berth backup FOLDER`; with this one, `berth up` on a new "
            "folder and `berth restore FOLDER`"
        )
    folder = data / KEYS_FOLDER
    users = migrate_keys(folder)
    messages = data / "jetstream" / "jetstream"
    old, new = messages / OLD_ACCOUNT, messages / account_key(folder, STREAMS)
    kept = "messages are kept"
    if old.is_dir():
        if new.exists():
            raise KeysError(f"{new} is there beside {old}: which of them holds the messages?")
        old.rename(new)
    elif not new.is_dir():
        kept = (
            f"no messages are here: where they are, in a server's volume say, rename the folder "
            f"jetstream/{OLD_ACCOUNT} to {new.name} while that server is stopped"
        )
    drop_old_form(folder)
    return f"{data}: credentials for {len(users)} users; {kept}"
