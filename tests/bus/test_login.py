"""Logins on a real server: who has a good token comes into its account, and can do no more there
than credentials that a person signed; nobody else comes in anywhere."""

import asyncio
import io
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from berthmaster.control.login.service import main
from berthmaster.control.login.settings import LoginSettings
from berthmaster.lib.access import account_push, claims
from berthmaster.lib.access.keys import (
    SIGNERS,
    creds_file,
    make_keys,
    remove_user,
    server_config,
    signer,
)
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.access.token_login import (
    LoginRefused,
    ask,
    keep_logged_in,
    log_in,
    write_creds,
)
from berthmaster.lib.messages.api import GATEWAY_VERBS
from berthmaster.lib.messages.door import DOOR_VERBS
from berthmaster.lib.messages.login import LoginRequest
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, serve
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotPermitted
from berthmaster.lib.nats.jwts import Creds
from berthmaster.lib.nats.subjects import LANES, LOGIN
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.logins import AUDIENCE, EC_KEY, OidcProvider, ReviewingApi, raw_token, signed_token
from tests.bus.tools import Lines, Settings, story
from tests.support.patience import ANSWER_S, until

USERS = (
    *("setup", "gateway", "door", "operator", "accounts", "login", "sentinel"),
    *("tenant.acme", "tenant.evil", "agent.red", "agent.blue"),
)


class Bus(NamedTuple):
    url: str
    keys: Path
    provider: OidcProvider
    red: ReviewingApi
    blue: ReviewingApi
    said: io.BytesIO  # what the login service wrote to its log

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[Connection]:
        async with self.connected(creds_file(self.keys, name), inbox_prefix(name)) as conn:
            yield conn

    @asynccontextmanager
    async def connected(self, creds: Path, inbox: str) -> AsyncIterator[Connection]:
        settings = Settings(self.url, creds, inbox)
        async with await Connection.open(
            settings, "x", Lines(), timeout_s=ANSWER_S, clock_subject=""
        ) as conn:
            yield conn

    @asynccontextmanager
    async def holder(self, creds: Creds, user: str) -> AsyncIterator[Connection]:
        """Connected with what was got, as that user's clients are."""
        path = self.keys.parent / "got.creds"
        write_creds(path, creds)
        async with self.connected(path, inbox_prefix(user)) as conn:
            yield conn

    async def log_in(self, token: str, **account: str) -> Creds:
        settings = Settings(self.url)
        sentinel = creds_file(self.keys, "sentinel")
        return await log_in(settings, sentinel, token, Lines(), **account)

    async def refused(self, token: str, **account: str) -> str:
        with pytest.raises(LoginRefused) as told:
            await self.log_in(token, **account)
        return str(told.value)


def mapping(folder: Path, provider: OidcProvider, red: ReviewingApi, blue: ReviewingApi) -> Any:
    def cluster(name: str, api: ReviewingApi) -> dict[str, Any]:
        return {
            "kind": "kubernetes",
            "name": name,
            "issuer": api.ISSUER,
            "audience": AUDIENCE,
            "kubeconfig": str(api.kubeconfig(folder / f"{name}.kubeconfig")),
            "rules": [{"service_account": "berth-system/berth-agent", "cluster": name}],
        }

    people = {
        "kind": "oidc",
        "name": "people",
        "issuer": provider.url,
        "audience": AUDIENCE,
        "rules": [
            {"claim": "groups", "value": "ml", "tenant": "acme"},
            {"claim": "sub", "value": "zoe", "tenant": "gone"},
        ],
    }
    return {"issuers": [people, cluster("red", red), cluster("blue", blue)]}


@asynccontextmanager
async def living(tmp_path: Path, **settings: Any) -> AsyncIterator[Bus]:
    """A server, the login service, and those who know who somebody is."""
    keys = tmp_path / "keys"
    make_keys(keys, USERS)
    config = ServerConfig(sync="default", extra=server_config(keys, tmp_path / "jwt"))
    async with AsyncExitStack() as owned:
        server = owned.enter_context(Server(tmp_path / "nats", config))
        provider = await owned.enter_async_context(OidcProvider())
        red = await owned.enter_async_context(ReviewingApi())
        blue = await owned.enter_async_context(ReviewingApi())
        file = tmp_path / "mapping.json"
        file.write_text(json.dumps(mapping(tmp_path, provider, red, blue)))
        said = io.BytesIO()
        made = LoginSettings(
            nats_url=server.url,
            nats_creds_file=creds_file(keys, "login"),
            inbox_prefix=inbox_prefix("login"),
            http_port=-1,
            mapping_file=file,
            signers_dir=keys / SIGNERS,
            **settings,
        )
        log = Log("login", level="debug", stream=said)
        ctx = Context("login", made, log=log, metrics=Metrics("login"), health=Health())
        task = asyncio.ensure_future(main(ctx))
        try:
            await until(lambda: task.done() or ctx.health.readiness()[0], "it serves")
            yield Bus(server.url, keys, provider, red, blue, said)
        finally:
            ctx.stopping.set()
            await task


@asynccontextmanager
async def answering(bus: Bus) -> AsyncIterator[list[str]]:
    """The gateway's and the door's places are taken; what they heard."""
    heard: list[str] = []

    async def answer(subject: str, data: bytes) -> bytes:
        heard.append(subject)
        return b"here"

    async with bus.user("gateway") as gateway, bus.user("door") as door:
        for conn, name, asked, verbs in (
            (gateway, "berth-gateway", "berth.api.*", GATEWAY_VERBS),
            (door, "berth-door", "berth.agent.*", DOOR_VERBS),
        ):
            await serve(
                conn,
                name,
                {verb: Endpoint(f"{asked}.{verb}", answer) for verb in verbs},
                version="1.0.0",
                description="x",
                overloaded=lambda why: b"",
                failed=lambda subject, error: b"",
                lanes=[conn] * LANES,
            )
        yield heard


async def denied(conn: Connection, *subjects: str) -> None:
    for subject in subjects:
        with pytest.raises((NotPermitted, NoAnswer)):
            await conn.request(subject, b"{}", timeout_s=0.5)


@story
async def test_login_reaches_own_account_only(tmp_path: Path) -> None:
    async with living(tmp_path) as bus, answering(bus) as heard:
        ann = await bus.log_in(bus.provider.token(), tenant="acme")
        async with bus.holder(ann, "tenant.acme") as conn:
            assert (
                await conn.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"here"
            await denied(conn, "berth.api.evil.get", "berth.agent.red.take", "berth.operator.lost")
            await denied(conn, "$JS.API.STREAM.INFO.WORKLOADS", LOGIN)

        token = bus.red.token("berth-system/berth-agent", AUDIENCE)
        agent = await bus.log_in(token, cluster="red")
        async with bus.holder(agent, "agent.red") as conn:
            assert (
                await conn.request("berth.agent.red.take", b"{}", timeout_s=ANSWER_S)
            ).data == b"here"
            await denied(conn, "berth.agent.blue.take", "berth.api.acme.get", LOGIN)
        assert heard == ["berth.api.acme.get", "berth.agent.red.take"]

        log = bus.said.getvalue().decode()
        lines = [json.loads(line) for line in log.splitlines()]
        told = [(line["user"], line["who"]) for line in lines if line["event"] == "login accepted"]
        who = "system:serviceaccount:berth-system:berth-agent"
        assert told == [("tenant.acme", "ann"), ("agent.red", who)]
        for secret in (ann.jwt, ann.seed, token):
            assert secret.split(".")[-1] not in log


@story
async def test_login_with_renewed_file_continues(tmp_path: Path) -> None:
    async with living(tmp_path, life_s=10) as bus, answering(bus):
        first = await bus.log_in(bus.provider.token("ec"), tenant="acme")
        ends_s = jwts.decoded(first.jwt)["exp"]
        assert 0 < ends_s - time.time() <= 10
        found = signer(bus.keys / SIGNERS, "T_acme")
        assert found is not None
        body = claims.scoped_user(jwts.public_key(first.seed), "x", account=found.account)
        now_s = time.time()
        brief = first._replace(jwt=jwts.signed(body, found.seed, now_s=now_s, ends_s=now_s + 2))
        async with bus.holder(brief, "tenant.acme") as conn:
            renewed = await log_in(
                Settings(bus.url),
                creds_file(bus.keys, "sentinel"),
                bus.provider.token(),
                Lines(),
                seed=brief.seed,
                tenant="acme",
            )
            write_creds(bus.keys.parent / "got.creds", renewed)
            await until(lambda: conn.reconnects == 1, "its first JWT ended")
            assert (
                await conn.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"here"
        over = brief._replace(jwt=jwts.signed(body, found.seed, now_s=now_s, ends_s=now_s - 1))
        with pytest.raises(BusError, match="refuses this user"):
            async with bus.holder(over, "tenant.acme"):
                pass


@story
async def test_login_renews_before_expiry(tmp_path: Path) -> None:
    async with living(tmp_path, life_s=3) as bus, answering(bus):
        path = tmp_path / "own.creds"
        stopping, troubles, tokens = asyncio.Event(), list[str](), ["none", bus.provider.token()]

        async def login(seed: str) -> Creds:
            token = tokens.pop(0) if len(tokens) > 1 else tokens[0]
            return await log_in(
                Settings(bus.url), creds_file(bus.keys, "sentinel"), token, Lines(),
                seed=seed, tenant="acme",
            )  # fmt: skip

        keeping = asyncio.ensure_future(
            keep_logged_in(login, path, stopping, report=troubles.append)
        )
        await until(path.exists, "it is let in")
        first = jwts.parse_creds(path.read_text())
        async with bus.connected(path, inbox_prefix("tenant.acme")) as conn:
            await until(lambda: conn.reconnects == 2, "two JWTs have ended")
            assert (
                await conn.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"here"
        stopping.set()
        await keeping
        last = jwts.parse_creds(path.read_text())
        assert (last.seed, last.jwt != first.jwt) == (first.seed, True)
        assert "no JSON Web Token" in troubles[0]
        assert set(troubles[1:]) == {""}


@story
async def test_a_scoped_key_grants_no_more_than_its_template(tmp_path: Path) -> None:
    """Whoever has all that the login service has is still a tenant or an agent, and no more."""
    async with living(tmp_path) as bus:
        found = signer(bus.keys / SIGNERS, "T_acme")
        evil = signer(bus.keys / SIGNERS, "T_evil")
        assert found is not None
        assert evil is not None
        seed = jwts.new_seed("user", os.urandom(32))
        key = jwts.public_key(seed)

        def made(body: dict[str, Any], by: str = found.seed) -> Creds:
            return Creds(jwts.signed(body, by, now_s=time.time()), seed)

        wide = claims.user(key, "x", publish=[">"], subscribe=[">"])
        wide["nats"]["issuer_account"] = found.account
        plain = claims.scoped_user(key, "x", account=found.account)
        many = claims.scoped_user(key, "x", account=found.account)
        many["nats"] |= {"allowed_connection_types": ["STANDARD"]}
        core = (bus.keys / "accounts" / "CORE.jwt").read_text().strip()
        elsewhere = claims.scoped_user(key, "x", account=jwts.decoded(core)["sub"])
        for creds in (made(wide), made(many), made(plain, evil.seed), made(elsewhere)):
            with pytest.raises(BusError, match="refuses this user"):
                async with bus.holder(creds, "tenant.acme"):
                    pass
        async with bus.holder(made(plain), "tenant.acme") as conn:
            await denied(conn, "berth.api.evil.get", "berth.agent.red.take", "$JS.API.INFO")
            await conn.subscribe("berth.event.evil.>", lambda *_: None)
            await until(lambda: len(conn.violations) == 4, "the server says so")


@story
async def test_a_token_that_is_not_good_lets_nobody_in(tmp_path: Path) -> None:
    async with living(tmp_path) as bus:
        provider, now = bus.provider, int(time.time())
        good = provider.token()
        head, body, signature = good.split(".")
        other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        claims_ = provider.claims()
        _, foreign, _ = provider.token(groups=["ml", "root"]).split(".")
        public = json.dumps({"kty": "RSA"})
        for token, why in (
            (signed_token(claims_, other, "RS256", kid="rsa"), "its signature is wrong"),
            (f"{head}.{foreign}.{signature}", "its signature is wrong"),
            (f"{head}.{body}.", "its signature is wrong"),
            (provider.token(exp=now - 31), "it has expired"),
            (provider.token(nbf=now + 300), "it is not valid yet"),
            (provider.token(aud="another"), "another audience"),
            (provider.token(aud=None), "it lacks one of"),
            (provider.token(exp=None), "it lacks one of"),
            (provider.token(iss="https://evil.example"), "no rule gives"),
            (provider.token(groups=["mlx"]), "to this identity"),
            (raw_token({"alg": "none"}, claims_), "of another kind"),
            (raw_token({"alg": "None", "kid": "rsa"}, claims_), "of another kind"),
            (signed_token(claims_, public * 4, "HS256", kid="rsa"), "of another kind"),
            (signed_token(claims_, other, "RS512", kid="rsa"), "of another kind"),
            (signed_token(claims_, EC_KEY, "ES256", kid="rsa"), "no such key"),
            (signed_token(claims_, other, "RS256", kid="unknown"), "no such key"),
            (signed_token(claims_, EC_KEY, "ES256", kid="ec", crit=["b64"]), "no JSON Web Token"),
            ("no token", "no JSON Web Token"),
            ("a.b.c", "no JSON Web Token"),
            (raw_token({"alg": "RS256"}, {"iss": ["x"]}), "iss"),
        ):
            told = await bus.refused(token, tenant="acme")
            assert why in told
            assert token not in told
        for account in ({"tenant": "evil"}, {"cluster": "red"}):
            assert "no rule gives" in await bus.refused(good, **account)
        assert "either tenant or cluster" in await bus.refused(good)
        both = {"tenant": "acme", "cluster": "red"}
        assert "either tenant or cluster" in await bus.refused(good, **both)
        assert "login accepted" not in bus.said.getvalue().decode()
        # Forged key ids have the keys fetched once more and not each time.
        assert provider.asked.count("keys") == 1


@mock.patch.multiple("berthmaster.control.login.service", REVIEWS_PER_S=0.1, REVIEWS_BURST=7)
@story
async def test_service_account_token_admits_own_cluster_only(tmp_path: Path) -> None:
    async with living(tmp_path) as bus:
        red, name = bus.red, "berth-system/berth-agent"
        good = red.token(name, AUDIENCE)
        # Both clusters' issuers have one name: blue is asked, and does not know it.
        assert "does not know it" in await bus.refused(good, cluster="blue")
        assert (len(red.asked), len(bus.blue.asked)) == (0, 1)
        assert "no rule gives" in await bus.refused(good, tenant="acme")
        for_api = red.token(name, red.ISSUER)
        assert "does not know it" in await bus.refused(for_api, cluster="red")
        another = red.token("default/berth-agent", AUDIENCE)
        assert "to this identity" in await bus.refused(another, cluster="red")
        red.knows_audiences = False
        assert "another audience" in await bus.refused(good, cluster="red")
        red.knows_audiences = True
        red.status = 403  # and it repeats the token, as servers of others may
        told = await bus.refused(good, cluster="red")
        assert "its API server does not say (Forbidden)" in told
        assert good not in told + bus.said.getvalue().decode()
        red.status = 201
        await bus.log_in(good, cluster="red")
        # An API server is not asked without end.
        for _ in range(2):
            await bus.log_in(good, cluster="red")
        assert "too many logins" in await bus.refused(good, cluster="red")
        assert len(red.asked) == 7


@story
async def test_login_without_provider_uses_cached_keys(tmp_path: Path) -> None:
    async with living(tmp_path) as bus:
        bus.provider.broken = True
        told = await bus.refused(bus.provider.token(), tenant="acme")
        assert "not let in (unavailable): people: it answers 500" in told
    async with living(tmp_path / "again") as bus:
        bus.provider.said = {"issuer": "https://evil.example"}
        told = await bus.refused(bus.provider.token(), tenant="acme")
        assert "its discovery document is of another issuer" in told
    async with living(tmp_path / "kept") as bus:
        await bus.log_in(bus.provider.token(), tenant="acme")
        bus.provider.broken = True
        await bus.log_in(bus.provider.token(), tenant="acme")


@story
async def test_sentinel_credentials_allow_login_only(tmp_path: Path) -> None:
    async with living(tmp_path) as bus, answering(bus) as heard, bus.user("sentinel") as sentinel:
        subjects = ("berth.api.acme.get", "berth.agent.red.take", "berth.operator.lost", "x")
        await denied(sentinel, *subjects, "$JS.API.INFO", "$SYS.REQ.CLAIMS.LIST", "$SRV.PING")
        overheard: list[str] = []
        for subject in (">", LOGIN, "_INBOX.>", "_R_.>", "berth.event.>"):
            await sentinel.subscribe(subject, lambda subject, _: overheard.append(subject))
        await until(lambda: len(sentinel.violations) == 12, "the server says so")
        # An operator hears all of berth., and no login.
        async with bus.user("operator") as operator:
            await operator.subscribe("berth.>", lambda subject, _: overheard.append(subject))
            await operator.flush()
            await bus.log_in(bus.provider.token(), tenant="acme")
        assert (heard, overheard) == ([], [])

        # An answer goes to who asked, wherever it was to go.
        request = b'{"token":"x","key":"%s","tenant":"acme"}' % (b"U" + b"A" * 55)
        for reply in ("berth.decision.all", "berth.api.acme.get", LOGIN):
            await sentinel.publish(LOGIN, request, reply=reply)
        await sentinel.flush()
        key = jwts.public_key(jwts.new_seed("user", os.urandom(32)))
        with pytest.raises(LoginRefused, match="no JSON Web Token"):
            await ask(sentinel, LoginRequest(token="x", key=key, tenant="acme"))
        assert heard == []
        for junk in (b"", b"{}", b'{"token":"x","key":"SU","tenant":"a"}', b'{"tokn":"x"}'):
            answer = (await sentinel.request(LOGIN, junk, timeout_s=ANSWER_S)).data
            assert b'"malformed"' in answer


@story
async def test_a_tenant_that_was_removed_lets_nobody_in_any_more(tmp_path: Path) -> None:
    async with living(tmp_path) as bus, answering(bus), bus.user("accounts") as pusher:
        ann = await bus.log_in(bus.provider.token(), tenant="acme")
        told = await bus.refused(bus.provider.token(sub="zoe"), tenant="gone")
        assert "there is no account for tenant.gone" in told
        async with bus.holder(ann, "tenant.acme") as conn:
            assert (
                await conn.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"here"
            assert remove_user(bus.keys, "tenant.acme")
            await account_push.delete(pusher, bus.keys, "T_acme")
            await until(lambda: not conn.connected, "it is cut off")
        assert signer(bus.keys / SIGNERS, "T_acme") is None
        told = await bus.refused(bus.provider.token(), tenant="acme")
        assert "there is no account for tenant.acme" in told


@story
async def test_a_mapping_that_is_wrong_is_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "mapping.json"
    settings = LoginSettings(http_port=-1, mapping_file=file, signers_dir=tmp_path)
    log = Log("login", level="error", stream=io.BytesIO())
    ctx = Context("login", settings, log=log, metrics=Metrics("login"), health=Health())
    with pytest.raises(CannotStart, match="No such file"):
        await main(ctx)
    file.write_text('{"issuers": [{"kind": "oidc"}]}')
    with pytest.raises(CannotStart, match=r"missing required field `name` - at `\$\.issuers"):
        await main(ctx)
