"""The login service: check one token for each request, and sign one JWT. No state is kept.

Checks without cost come first: the request, the issuer in the token, and a rule about the wanted
account. Only then is an issuer asked. Several replicas may run, and each answers its own requests.
Accepted logins are logged with the public key. Refused ones are counted.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final, Literal

import aiohttp

from berthmaster.control.login.core.bucket import Bucket
from berthmaster.control.login.core.errors import LoginError, Refused, Unavailable
from berthmaster.control.login.core.mapping import (
    Identity,
    Issuer,
    KubernetesIssuer,
    Mapping,
    MappingError,
    Wanted,
    candidates,
    parse_mapping,
    stands_for,
)
from berthmaster.control.login.oidc import Provider, issuer_of
from berthmaster.control.login.reviews import Reviewer
from berthmaster.control.login.settings import LoginSettings
from berthmaster.lib.access import claims
from berthmaster.lib.access.keys import KeysError, signer
from berthmaster.lib.access.permissions import account_of
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.families import LOGIN_REQUESTS, UNREADABLE, encode
from berthmaster.lib.messages.login import MAX_LOGIN_BYTES, LoginReply, LoginRequest
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, serve
from berthmaster.lib.nats.errors import TooLarge
from berthmaster.lib.nats.fair_queue import Beyond
from berthmaster.lib.nats.service_connection import connected
from berthmaster.lib.nats.subjects import LOGIN, SubjectError
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "login"
SERVED_AS: Final = "berth-login"
NO_CLOCK: Final = ""  # no right to request the server's clock
ANSWER_LIMIT_S: Final = 8.0  # the reply subject lives for ten
MAX_REQUESTS: Final = 256  # in flight. The service refuses others at once
REVIEWS_PER_S: Final = 20.0  # TokenReviews of one cluster: any token makes its API server work
REVIEWS_BURST: Final = 100  # TokenReviews of one cluster at once: all its agents start
MAX_MAPPING_BYTES: Final = 4 * 1024 * 1024


Code = Literal[
    "malformed", "invalid", "too_large", "not_found", "forbidden", "overloaded", "unavailable"
]


class Busy(LoginError):
    """The issuer was not asked, because of too many recent requests."""


class Shell:
    def __init__(
        self,
        ctx: Context[LoginSettings],
        mapping: Mapping,
        checks: dict[str, Provider | Reviewer],
    ) -> None:
        """``checks`` has the checker of each issuer, by the issuer's name in the mapping."""
        self._ctx = ctx
        self._mapping = mapping
        self._checks = checks
        self._pace = {
            issuer.name: Bucket(REVIEWS_PER_S, REVIEWS_BURST)
            for issuer in mapping.issuers
            if isinstance(issuer, KubernetesIssuer)
        }
        self._logins = ctx.metrics.counter("logins", "Login requests by result", ("outcome",))

    async def answer(self, subject: str, data: bytes) -> bytes:
        try:
            reply = await self._login(data)
        except Refused as error:
            reply = refusal("forbidden", "token", "", str(error))
        except Busy as error:
            reply = refusal("overloaded", "", "", str(error), retry=True)
        except Unavailable as error:
            self._ctx.log.warning("token issuer unreachable", why=str(error))
            reply = refusal("unavailable", "", "", str(error), retry=True)
        except KeysError as error:
            self._ctx.log.error("login failed", why=str(error))
            reply = refusal("unavailable", "", "", "the keys of this account cannot be read")
        outcome = reply.code if isinstance(reply, Refusal) else "let_in"
        self._logins.labels(outcome).inc()
        return encode(reply)

    async def _login(self, data: bytes) -> LoginReply | Refusal:
        if len(data) > MAX_LOGIN_BYTES:
            return refusal("too_large", "", "", f"at most {MAX_LOGIN_BYTES} bytes")
        try:
            request = LOGIN_REQUESTS.decode(data)
            wanted = Wanted(request.tenant, request.cluster)
            if bool(wanted.tenant) == bool(wanted.cluster):
                return refusal("invalid", "tenant", wanted.tenant, "either tenant or cluster")
            user = wanted.user
        except UNREADABLE as error:
            return refusal("malformed", "", "", str(error))
        except SubjectError as error:
            return refusal("invalid", "", "", str(error))
        issuer, identity = await self._identify(request.token, wanted)
        return self._signed(request, user, issuer, identity)

    async def _identify(self, token: str, wanted: Wanted) -> tuple[Issuer, Identity]:
        """Return an identity with a rule for the wanted account, and its issuer. Raises
        LoginError.
        """
        found = candidates(self._mapping, issuer_of(token), wanted)
        why: LoginError = Refused(f"no rule gives {wanted} to tokens of this issuer")
        for issuer in found:
            try:
                pace = self._pace.get(issuer.name)
                if pace is not None and not pace.take(asyncio.get_running_loop().time()):
                    raise Busy("too many logins in this second")
                identity = await self._checks[issuer.name].identity(token)
            except LoginError as error:
                # An unreachable issuer outweighs an issuer that does not know the token.
                why = why if isinstance(why, (Unavailable, Busy)) else error
                continue
            if stands_for(issuer, identity, wanted):
                return issuer, identity
            why = Refused(f"no rule gives {wanted} to this identity")
        raise why

    def _signed(
        self, request: LoginRequest, user: str, issuer: Issuer, identity: Identity
    ) -> LoginReply | Refusal:
        account = account_of(user)
        settings = self._ctx.settings
        found = signer(settings.signers_dir, account)
        if found is None:
            return refusal("not_found", "", "", f"there is no account for {user} on this bus yet")
        now_s = self._ctx.now()
        ends_s = now_s + settings.life_s
        body = claims.scoped_user(request.key, user, account=found.account)
        jwt = jwts.signed(body, found.seed, now_s=now_s, ends_s=ends_s)
        self._ctx.log.info(
            "login accepted",
            user=user,
            key=request.key,
            issuer=issuer.name,
            who=identity.subject[:256],
        )
        return LoginReply(jwt=jwt, ends_s=float(int(ends_s)))


def refusal(code: Code, field: str, value: str, expected: str, *, retry: bool = False) -> Refusal:
    """Return the answer to a refused login."""
    return Refusal(code=code, field=field, value=value[:64], expected=expected, retry=retry)


def _overloaded(beyond: Beyond) -> bytes:
    return encode(refusal("overloaded", "", "", beyond.why, retry=True))


def _failed(subject: str, error: Exception) -> bytes:
    why = "no answer in time" if isinstance(error, TimeoutError) else "it could not be answered"
    if isinstance(error, TooLarge):
        why = "the answer is too large"
    return encode(refusal("unavailable", "", "", why, retry=True))


def read_mapping(ctx: Context[LoginSettings]) -> Mapping:
    """Return the mapping file. Raises CannotStart."""
    path = ctx.settings.mapping_file
    try:
        data = path.read_bytes()
        if len(data) > MAX_MAPPING_BYTES:
            raise MappingError(f"is larger than {MAX_MAPPING_BYTES} bytes")
        return parse_mapping(data)
    except OSError as error:
        raise CannotStart(f"--mapping-file {path}: {error.strerror}") from error
    except MappingError as error:
        raise CannotStart(f"--mapping-file {path}: {error}") from None


async def main(ctx: Context[LoginSettings]) -> None:
    """Run until the service stops. Raises CannotStart for an invalid mapping or folder."""
    mapping = read_mapping(ctx)
    if not ctx.settings.signers_dir.is_dir():
        raise CannotStart(f"--signers-dir {ctx.settings.signers_dir} is no folder")
    async with AsyncExitStack() as owned:
        session = await owned.enter_async_context(aiohttp.ClientSession(trust_env=True))
        checks: dict[str, Provider | Reviewer] = {}
        for issuer in mapping.issuers:
            try:
                if isinstance(issuer, KubernetesIssuer):
                    reviewer = await Reviewer.open(issuer, ctx.log)
                    owned.push_async_callback(reviewer.close)
                    checks[issuer.name] = reviewer
                else:
                    clock = asyncio.get_running_loop().time
                    checks[issuer.name] = Provider(issuer, session, clock)
            except (BadConfig, OSError) as error:
                raise CannotStart(f"issuer {issuer.name}: {error}") from error
        conn = await owned.enter_async_context(connected(ctx, clock_subject=NO_CLOCK))
        if conn is not None:
            await _serve(ctx, conn, Shell(ctx, mapping, checks))


async def _serve(ctx: Context[LoginSettings], conn: Connection, shell: Shell) -> None:
    endpoints = await serve(
        conn,
        SERVED_AS,
        {"token": Endpoint(LOGIN, shell.answer)},
        version="1.0.0",
        description="Lets in who has a token and no credentials",
        overloaded=_overloaded,
        failed=_failed,
        max_concurrent=MAX_REQUESTS,
        answer_limit_s=ANSWER_LIMIT_S,
    )
    ctx.health.ready(NAME, True)
    await ctx.stopping.wait()
    await endpoints.stop()


SERVICE: Final = Service(NAME, LoginSettings, main)
