"""Updates the accounts of running servers: new, changed and removed ones.

The updates use a connection in the system account (the user "accounts"). Every server of a NATS
cluster gets an update at once. Connections of other accounts are not disturbed. Connections of a
removed account are closed.
"""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.access.keys import account_jwts, account_key, deletion, removed_accounts
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.connect_options import ConnectionSettings
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.log import LogLike

PUSH_TIMEOUT_S: Final = 5.0
NO_CLOCK: Final = ""  # this account has no JetStream, and needs no time


class AccountRefused(BusError):
    """A server refuses the claims of an account. The text gives the reason."""


class _Error(msgspec.Struct):
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _Listed(msgspec.Struct):
    data: list[str] = []
    error: _Error | None = None


class Changes(NamedTuple):
    """The updated accounts, by name. Accounts without a known name are not touched."""

    pushed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pushed or self.deleted)


async def open_pusher(
    settings: ConnectionSettings, log: LogLike, *, timeout_s: float = PUSH_TIMEOUT_S
) -> Connection:
    """Open a connection in the system account. Raises BusError."""
    return await Connection.open(
        settings, "accounts", log, timeout_s=timeout_s, clock_subject=NO_CLOCK
    )


async def push(conn: Connection, jwt: str) -> None:
    """Create or replace an account. Raises BusError."""
    await _send(conn, "UPDATE", jwt)


async def delete(conn: Connection, folder: Path, name: str) -> None:
    """Delete an account, after revoking its users' credentials. Raises BusError, KeysError."""
    await push(conn, removed_accounts(folder)[name])
    await _send(conn, "DELETE", deletion(folder, name))


async def reconcile(conn: Connection, folder: Path) -> Changes:
    """Push accounts missing or outdated on the servers, and delete accounts removed from the
    folder. Raises BusError, KeysError.
    """
    known = await _listed(conn)
    pushed, deleted = [], []
    for name, jwt in account_jwts(folder).items():
        if account_key(folder, name) not in known or await _looked_up(conn, jwt) != jwt:
            await push(conn, jwt)
            pushed.append(name)
    for name in removed_accounts(folder):
        if account_key(folder, name) in known:
            await delete(conn, folder, name)
            deleted.append(name)
    return Changes(tuple(pushed), tuple(deleted))


async def _listed(conn: Connection) -> frozenset[str]:
    reply = await conn.request("$SYS.REQ.CLAIMS.LIST", b"", timeout_s=PUSH_TIMEOUT_S)
    try:
        return frozenset(msgspec.json.decode(reply.data, type=_Listed).data)
    except msgspec.DecodeError as error:
        raise AccountRefused(f"the list of accounts cannot be read: {error}") from error


async def _looked_up(conn: Connection, jwt: str) -> str:
    key = jwts.decoded(jwt)["sub"]
    subject = f"$SYS.REQ.ACCOUNT.{key}.CLAIMS.LOOKUP"
    return (await conn.request(subject, b"", timeout_s=PUSH_TIMEOUT_S)).data.decode()


async def _send(conn: Connection, verb: str, jwt: str) -> None:
    reply = await conn.request(f"$SYS.REQ.CLAIMS.{verb}", jwt.encode(), timeout_s=PUSH_TIMEOUT_S)
    try:
        answer = msgspec.json.decode(reply.data, type=_Answer)
    except msgspec.DecodeError as error:
        raise AccountRefused(f"the server's answer cannot be read: {error}") from error
    if answer.error is not None:
        raise AccountRefused(f"the server does not take the account: {answer.error.description}")
