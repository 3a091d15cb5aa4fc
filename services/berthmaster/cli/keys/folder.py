"""The data folder of a bus by `berth up`, for commands that manage its users.

The commands sign in the folder and notify the running servers, which apply changes at once. A
stopped bus reads changes at its start.
"""

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from berthmaster.cli.context.target import find_connection
from berthmaster.cli.output.errors import complain, did_you_mean
from berthmaster.cli.session import EXIT_FAILED, Output
from berthmaster.lib.access import account_push
from berthmaster.lib.access.certificates import CertificatesError
from berthmaster.lib.access.keys import (
    KeysError,
    account_jwts,
    account_key,
    creds_file,
    public_keys,
)
from berthmaster.lib.access.permissions import PUSHER, UnknownUser, account_of, inbox_prefix
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.subjects import SubjectError, text
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.supervisor.embedded import ServerFailed
from berthmaster.lib.supervisor.faults import fault_text
from berthmaster.lib.supervisor.folder import (
    CONNECTION_FILE,
    KEYS_FOLDER,
    TLS_FOLDER,
    ConnectionFile,
    read_external,
)
from berthmaster.lib.supervisor.running_servers import (
    answers,
    client_url,
    connected_keys,
    keys_connected_to,
    running,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

FAILURES: Final = (
    *(KeysError, ServerFailed, CertificatesError, UnknownUser, SubjectError),
    *(BusError, jwts.ClaimsError, OSError),
)
DAYS: Final = 30.0
MOST_DAYS: Final = 3650
NO_SERVER: Final = " No server runs on this folder now: it learns of it when it starts."


class FolderFailed(Exception):
    """The action is impossible. The text says what would help."""


class _Settings(msgspec.Struct, frozen=True):
    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None
    nats_plaintext: bool = False


class Folder:
    """The data folder of a bus by `berth up`."""

    def __init__(self, path: Path, external_url: str) -> None:
        self.path = path
        self.external_url = external_url
        self.keys = path / KEYS_FOLDER
        self.ca_file = path / TLS_FOLDER / "ca.crt"
        self.certificate = path / TLS_FOLDER / "server.crt"

    @classmethod
    def find(cls, data: Path | None) -> "Folder":
        """Return the named folder, or that of a running bus. Raises FolderFailed."""
        found = find_connection(data, os.environ, Path.cwd())
        named = data or (Path(os.environ["BERTH_DATA"]) if "BERTH_DATA" in os.environ else None)
        path = found[0].parent if found else named
        if path is None or not (path / KEYS_FOLDER).is_dir():
            raise FolderFailed(
                f"no keys in {path or 'any folder that was found'}: name the data folder of "
                "`berth up`, or of the hub's container `accounts`, with --data"
            )
        return cls(path.absolute(), read_external(path))

    def users(self, role: str) -> dict[str, str]:
        """Return the names of users with a role, and their public keys."""
        start = f"{role}."
        users = public_keys(self.keys).items()
        return {
            text(user.removeprefix(start)): key for user, key in users if user.startswith(start)
        }

    def require_key(self, role: str, name: str) -> None:
        """Raise FolderFailed if no user of a role has this name."""
        users = self.users(role)
        if name not in users:
            known, hint = ", ".join(sorted(users)) or "none", did_you_mean(name, users)
            what = "cluster" if role == "agent" else role
            raise FolderFailed(f"no {what} {name!r} has a key here{hint}; those that have: {known}")

    def account(self, user: str) -> str:
        """Return the public key of the user's account."""
        return account_key(self.keys, account_of(user))

    def ends(self, user: str) -> str:
        """Return the end of the user's JWT; "" = never."""
        return ends(jwts.parse_creds(creds_file(self.keys, user).read_text()).jwt)

    def notify(self, user: str) -> bool:
        """Push a user's account to the running servers; False = none runs. Raises BusError."""
        urls = self._urls()
        if not urls:
            return False
        settings = _Settings(
            ",".join(urls),
            creds_file(self.keys, PUSHER),
            inbox_prefix(PUSHER),
            self.ca_file if urls[0].startswith("tls") else None,
        )
        asyncio.run(self._notify(settings, account_of(user)))
        return True

    def _urls(self) -> list[str]:
        """Return the URLs of the running servers; [] = none."""
        if not (known := self._connection()).monitors:
            return [client_url(place) for place in running(self.path)]
        return [known.url] if any(map(answers, known.monitors)) else []

    def connected_keys(self) -> frozenset[str]:
        """Return the public keys of the connected users and accounts.

        Raises ServerFailed if a server does not answer.
        """
        monitors = self._connection().monitors
        return keys_connected_to(monitors) if monitors else connected_keys(self.path)

    def _connection(self) -> ConnectionFile:
        try:
            return msgspec.json.decode(
                (self.path / CONNECTION_FILE).read_bytes(), type=ConnectionFile
            )
        except FileNotFoundError:
            return ConnectionFile(url="")

    async def _notify(self, settings: _Settings, account: str) -> None:
        log = Log("berth", level="error", format="text")
        async with await account_push.open_pusher(settings, log) as conn:
            if jwt := account_jwts(self.keys).get(account):
                await account_push.push(conn, jwt)
            else:
                await account_push.delete(conn, self.keys, account)


def ends(jwt: str) -> str:
    """Return the end of a JWT as text; "" = never."""
    at_s = jwts.decoded(jwt).get("exp")
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds") if at_s else ""


def no_server(notified: bool) -> str:
    """Return the sentence for a change without a notified server, or ""."""
    return "" if notified else NO_SERVER


def days_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the flag for the lifetime of a JWT."""
    return click.option(
        "--days",
        type=click.FloatRange(0, MOST_DAYS, min_open=True),
        default=DAYS,
        show_default=True,
        metavar="N",
        help="Lifetime of its JWT; `renew` issues another.",
    )(function)


def folder_command(function: Callable[..., int]) -> Callable[..., None]:
    """Add the shared flags, and write errors as one line."""

    @click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Data folder of the `berth up` or hub. [default: BERTH_DATA, else the one "
        "running here]",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
    @functools.wraps(function)
    def command(data: Path | None, as_json: bool, **flags: Any) -> None:
        output = Output(as_json=as_json)
        try:
            code = function(Folder.find(data), output, **flags)
        except (FolderFailed, *FAILURES) as error:
            text = fault_text(error)
            if as_json:
                output.line({"error": {"code": "failed", "message": text}})
            complain(f"{text}")
            code = EXIT_FAILED
        sys.exit(code)

    return command


def key_table(what: str, keys: Mapping[str, Any]) -> "RenderableType":
    """Return the table of keys by name, each with ``connected``, ``ends`` and ``key``."""
    from berthmaster.cli.output.terminal import plain_table, safe

    if not keys:
        return safe(f"No {what} has a key yet: berth {what} add NAME")
    table = plain_table(what.upper(), "CONNECTED", "ENDS", "PUBLIC KEY", right=())
    for name, each in keys.items():
        connected = "yes" if each.connected else "no"
        table.add_row(safe(name), connected, each.ends or "never", safe(each.key))
    return table


def show(output: Output, value: object, screen: "Callable[[], RenderableType]") -> None:
    """Write like ``output.document``, but never wrap text for copying."""
    if output.as_json:
        output.document(value, screen)
    else:
        output.console.print(screen(), soft_wrap=True)
