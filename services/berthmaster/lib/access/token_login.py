"""Exchanges a token for credentials at the login service, over the published sentinel credentials.

The private key is created here and never sent. The new credentials are written to an ordinary file.
So each connection with the file uses the renewed credentials from the next connect on.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.lib.access.keys import write_whole
from berthmaster.lib.access.permissions import SENTINEL, inbox_prefix
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.families import LOGIN_ANSWERS, UNREADABLE, encode
from berthmaster.lib.messages.login import MAX_TOKEN_CHARS, LoginReply, LoginRequest
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.connect_options import ConnectionSettings
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.jwts import Creds
from berthmaster.lib.nats.subjects import LOGIN
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import stopped_within

RENEW_AFTER: Final = 2 / 3  # of the lifetime, and up to a tenth earlier at random: not all at once
AGAIN: Final = Backoff(first_s=1.0, most_s=30.0)
MAX_TOKEN_BYTES: Final = 64 * 1024  # of a file
ASK_LIMIT_S: Final = 10.0  # the service's own limit is eight seconds


class LoginRefused(BusError):
    """The login service refuses. ``retry``: the same token may be accepted later."""

    def __init__(self, why: str, *, retry: bool) -> None:
        super().__init__(why)
        self.retry = retry


class LoginTarget(NamedTuple):
    """The login service's bus, for a program without a service's settings. See
    ConnectionSettings.
    """

    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None
    nats_plaintext: bool


async def log_in(
    settings: ConnectionSettings,
    sentinel: Path,
    token: str,
    log: LogLike,
    *,
    seed: str = "",
    tenant: str = "",
    cluster: str = "",
) -> Creds:
    """Return credentials for a tenant or for a cluster's agent. ``seed``: of the user, "" = a new
    one. ``settings``: of the bus. Raises LoginRefused and other BusErrors.
    """
    if not 0 < len(token) <= MAX_TOKEN_CHARS:
        raise LoginRefused(
            f"the token has {len(token)} characters, not 1 to {MAX_TOKEN_CHARS}", retry=False
        )
    seed = seed or jwts.new_seed("user", secrets.token_bytes(32))
    as_sentinel = LoginTarget(
        settings.nats_url,
        sentinel,
        inbox_prefix(SENTINEL),
        settings.nats_ca_file,
        settings.nats_plaintext,
    )
    async with await Connection.open(
        as_sentinel, "login", log, timeout_s=ASK_LIMIT_S, clock_subject=""
    ) as conn:
        wanted = LoginRequest(
            token=token, key=jwts.public_key(seed), tenant=tenant, cluster=cluster
        )
        return Creds((await ask(conn, wanted)).jwt, seed)


async def ask(conn: Connection, request: LoginRequest) -> LoginReply:
    """Send one request over a connection of the sentinel. Raises LoginRefused and other
    BusErrors.
    """
    reply = await conn.request(LOGIN, encode(request), timeout_s=ASK_LIMIT_S)
    try:
        answer = LOGIN_ANSWERS.decode(reply.data)
    except UNREADABLE as error:
        raise BusError(f"the login service's answer cannot be read: {error}") from None
    if isinstance(answer, Refusal):
        where = f"{answer.field}: " if answer.field else ""
        raise LoginRefused(
            f"not let in ({answer.code}): {where}{answer.expected}", retry=answer.retry
        )
    return answer


def write_creds(path: Path, creds: Creds) -> None:
    """Write the file, readable only by the owner, completely or not at all. Raises OSError."""
    write_whole(path, jwts.creds_text(creds), mode=0o600)


def read_token(path: Path) -> str:
    """Read a token from a file, such as the kubelet's for a pod. Raises BusError."""
    try:
        with path.open() as file:
            return file.read(MAX_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BusError(f"cannot read the token {path}: {why}") from None


def renew_in_s(jwt: str, chance: Callable[[], float]) -> float:
    """Return the seconds until a new JWT needs renewal, by the JWT's own times: the local clock may
    be wrong.
    """
    claims = jwts.decoded(jwt)
    lifetime_s: float = max(0, claims["exp"] - claims["iat"])
    return lifetime_s * RENEW_AFTER * (1 - 0.1 * chance())


async def keep_logged_in(
    login: Callable[[str], Awaitable[Creds]],
    path: Path,
    stopping: asyncio.Event,
    *,
    report: Callable[[str], None],
) -> None:
    """Write credentials, and renew them for the same key before the expiry, until ``stopping``.

    ``login`` is called with the last seed, at first "". When a JWT expires, the server closes the
    user's connections, and each reconnects at once with the new JWT in the file. ``report`` is
    called with the error of a failed login before the retry, and with "" after each success.
    """
    seed, failures = "", 0
    while not stopping.is_set():
        try:
            creds = await login(seed)
            write_creds(path, creds)
            seed, failures = creds.seed, 0
            report("")
            wait_s = renew_in_s(creds.jwt, random.random)
        except (BusError, OSError) as error:
            failures += 1
            report(str(error))
            wait_s = AGAIN.delay_s(failures, random)
        await stopped_within(wait_s, stopping)
