"""The JWTs by which nats-server knows accounts and users: built, signed and read. Pure.

Rules of this file:

- Only CORE has JetStream. A tenant's account imports its own part of the API, its own events and
  its jobs' figures, a cluster's what the door offers it and what is assigned to it, and nothing
  else: a reply subject of theirs is rewritten by the server before CORE sees it, so that no answer
  of a service can be sent into the log.
- CORE's exports are public, which is safe: imports stand in account JWTs, and those only the
  operator's key signs. Nothing of JetStream, of the log or of the operators is ever exported.
- What tenants ask of the gateway and clusters of the door comes by lanes (see subjects.py).
- An account's default permissions are a second fence, for JWTs that have none of their own.
- Times and randomness are handed in. A seed is never put into an error.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import nkeys

from berthmaster.bus import subjects
from berthmaster.bus.subjects import LOGIN as LOGIN_SUBJECT
from berthmaster.messages.api import GATEWAY_VERBS
from berthmaster.messages.door import DOOR_VERBS

CORE: Final = "CORE"
SYSTEM: Final = "SYS"
LOGIN: Final = "LOGIN"
TENANT: Final = "T_"
CLUSTER: Final = "C_"
ALWAYS: Final = (CORE, SYSTEM)

API_ANSWER_S: Final = 15  # how long an unanswered request's reply subject lives
AGENT_ANSWER_S: Final = 60  # polls of agents are long
LOGIN_ANSWER_S: Final = 10
_NS: Final = 1_000_000_000
_PREFIXES: Final = MappingProxyType(
    {
        "operator": nkeys.PREFIX_BYTE_OPERATOR,
        "account": nkeys.PREFIX_BYTE_ACCOUNT,
        "user": nkeys.PREFIX_BYTE_USER,
    }
)
_CREDS: Final = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+"
    r".*-----BEGIN USER NKEY SEED-----\s+(S\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)

Kind = Literal["operator", "account", "user"]
Revocations = Mapping[str, int]  # public key of a user, "*" = all: until when JWTs were signed
Body = dict[str, Any]


class ClaimsError(ValueError):
    """It is no JWT, no seed or no file of credentials; the text holds nothing of it."""


class Limits(NamedTuple):
    """What all clients of an account may have together."""

    connections: int = -1
    subscriptions: int = -1
    payload_bytes: int = -1
    leaf_nodes: int = -1
    jetstream: bool = False


CORE_LIMITS: Final = Limits(jetstream=True)
TENANT_LIMITS: Final = Limits(20, 200, 256 * 1024, 0)
# Each node may have a telemetry agent, which is one connection and its inbox.
CLUSTER_LIMITS: Final = Limits(1000, 4000, 512 * 1024, 2)
LOGIN_LIMITS: Final = Limits(200, 1000, 16 * 1024, 0)


class Scope(NamedTuple):
    """A key that may sign users of an account, who may do this whatever their JWTs say."""

    key: str  # public
    publish: Sequence[str]
    subscribe: Sequence[str]


class Creds(NamedTuple):
    """What one user connects with."""

    jwt: str
    seed: str


# ---- keys


def new_seed(kind: Kind, raw: bytes) -> str:
    """The seed made of 32 random bytes."""
    seed: bytes = nkeys.encode_seed(raw, _PREFIXES[kind])
    return seed.decode()


def public_key(seed: str) -> str:
    """Raises ClaimsError."""
    pair = _pair(seed)
    key: bytes = pair.public_key
    pair.wipe()
    return key.decode()


def answered(seed: str, nonce: str) -> bytes:
    """The signature under a server's nonce. Raises ClaimsError."""
    pair = _pair(seed)
    signature: bytes = base64.b64encode(pair.sign(nonce.encode()))
    pair.wipe()
    return signature


def _pair(seed: str) -> Any:
    try:
        pair = nkeys.from_seed(seed.encode())
        _ = pair.public_key
    except Exception:  # noqa: BLE001 # the library raises its own, binascii's and others
        raise ClaimsError("no nkey seed (those begin with S)") from None
    return pair


# ---- JWTs


def signed(body: Body, seed: str, *, now_s: float, ends_s: float | None = None) -> str:
    """The JWT of what one of the functions below made. Raises ClaimsError."""
    claims = body | {"iss": public_key(seed), "iat": int(now_s)}
    if ends_s is not None:
        claims["exp"] = int(ends_s)
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(claims))}"
    pair = _pair(seed)
    signature: bytes = pair.sign(text.encode())
    pair.wipe()
    return f"{text}.{_base64(signature)}"


def decoded(jwt: str) -> Body:
    """What a JWT says; who signed it is not checked. Raises ClaimsError."""
    try:
        _, body, _ = jwt.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except ValueError:
        raise ClaimsError("no JWT") from None
    if not isinstance(claims, dict) or not isinstance(claims.get("nats"), dict):
        raise ClaimsError("no JWT of NATS")
    return claims


def says(jwt: str, body: Body) -> bool:
    """Whether it says this, whenever it was signed."""
    try:
        claims = decoded(jwt)
    except ClaimsError:
        return False
    return {name: claims.get(name) for name in body} == body


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def operator(key: str, *, system: str) -> Body:
    """Who signs accounts; ``system``: public key of the account that may push them."""
    return _body(key, "berth", {"type": "operator", "system_account": system})


def core(key: str, *, revocations: Revocations | None = None) -> Body:
    """Where the streams and the services are, and all that others may have of it."""
    in_lanes = (
        *(subjects.api_of_all_tenants(verb) for verb in GATEWAY_VERBS),
        *(subjects.agent_of_all_clusters(verb) for verb in DOOR_VERBS),
    )
    body = _account(
        key,
        CORE,
        CORE_LIMITS,
        revocations=revocations or {},
        exports=[
            _service("berth.api.*.*", API_ANSWER_S),
            _service("berth.agent.*.*", AGENT_ANSWER_S),
            _service(LOGIN_SUBJECT, LOGIN_ANSWER_S),
            _stream("berth.event.>"),
            _stream("berth.figures.>"),
            _stream("berth.assign.>"),
        ],
    )
    body["nats"]["mappings"] = {
        asked: [{"subject": subjects.lane_of_subject(asked), "weight": 100}] for asked in in_lanes
    }
    return body


def system(key: str) -> Body:
    """The server's own: accounts are pushed from there."""
    return _account(key, SYSTEM, Limits())


def tenant(
    key: str,
    name: str,
    *,
    core: str,
    revocations: Revocations | None = None,
    scope: Scope | None = None,
) -> Body:
    """One tenant; ``name`` as it stands in subjects."""
    asked, heard = f"berth.api.{name}.*", (f"berth.event.{name}.>", f"berth.figures.{name}.>")
    return _guest(
        key, f"{TENANT}{name}", TENANT_LIMITS, asked, heard, core, revocations or {}, scope
    )


def cluster(
    key: str,
    name: str,
    *,
    core: str,
    revocations: Revocations | None = None,
    scope: Scope | None = None,
) -> Body:
    """One worker cluster; ``name`` as it stands in subjects."""
    asked, heard = f"berth.agent.{name}.*", (f"berth.assign.{name}.>",)
    own = (f"berth.agent.{name}.telemetry",)  # of its nodes, heard where it is sent
    return _guest(
        key, f"{CLUSTER}{name}", CLUSTER_LIMITS, asked, heard, core, revocations or {}, scope, own
    )


def _guest(
    key: str,
    name: str,
    limits: Limits,
    asked: str,
    heard: Sequence[str],
    core: str,
    revocations: Revocations,
    scope: Scope | None,
    own: Sequence[str] = (),
) -> Body:
    """An account that asks under one subject of the core's and hears some, and nothing else;
    ``own`` is what its users hear of one another."""
    return _account(
        key,
        name,
        limits,
        revocations=revocations,
        imports=[
            _import("service", asked, core),
            *(_import("stream", subject, core) for subject in heard),
        ],
        defaults=_permissions([asked], [*heard, *own, "_INBOX.>"]),
        scope=scope,
    )


def login(key: str, *, core: str, revocations: Revocations | None = None) -> Body:
    """Where those are who have no credentials yet: they may ask for some, and nothing else."""
    return _account(
        key,
        LOGIN,
        LOGIN_LIMITS,
        revocations=revocations or {},
        imports=[_import("service", LOGIN_SUBJECT, core)],
        defaults=_permissions([LOGIN_SUBJECT], ["_INBOX.>"]),
    )


def scoped_user(key: str, name: str, *, account: str) -> Body:
    """One user of an account, to be signed with a scoped key of it: what it may do is said there,
    and one that says anything itself is refused."""
    return _body(key, name, {"type": "user", "issuer_account": account})


def user(key: str, name: str, *, publish: Sequence[str], subscribe: Sequence[str]) -> Body:
    """One user; whoever signs it with an account's key takes it in there."""
    nats = _permissions(publish, subscribe) | {"subs": -1, "data": -1, "payload": -1}
    return _body(key, name, nats | {"type": "user"})


def deletion(operator: str, account: str) -> Body:
    """The request to take an account away."""
    return _body(operator, "delete", {"type": "generic", "accounts": [account]})


def _body(key: str, name: str, nats: Body) -> Body:
    return {"sub": key, "name": name, "nats": nats | {"version": 2}}


def _account(
    key: str,
    name: str,
    limits: Limits,
    *,
    exports: Sequence[Body] = (),
    imports: Sequence[Body] = (),
    revocations: Revocations = MappingProxyType({}),
    defaults: Body | None = None,
    scope: Scope | None = None,
) -> Body:
    stored = -1 if limits.jetstream else 0
    nats = {
        "type": "account",
        "exports": list(exports),
        "imports": list(imports),
        "limits": {
            "subs": limits.subscriptions,
            "data": -1,
            "payload": limits.payload_bytes,
            "imports": -1,
            "exports": -1,
            "wildcards": True,
            "conn": limits.connections,
            "leaf": limits.leaf_nodes,
            "mem_storage": stored,
            "disk_storage": stored,
            "streams": stored,
            "consumer": stored,
        },
        "default_permissions": defaults or {"pub": {}, "sub": {}},
    }
    if scope is not None:
        nats["signing_keys"] = [_scope(scope)]
    if revocations:
        nats["revocations"] = dict(revocations)
    return _body(key, name, nats)


def _scope(scope: Scope) -> Body:
    allowed = _permissions(scope.publish, scope.subscribe)
    template = allowed | {"subs": -1, "data": -1, "payload": -1}
    return {"kind": "user_scope", "key": scope.key, "role": "login", "template": template}


def _permissions(publish: Sequence[str], subscribe: Sequence[str]) -> Body:
    return {"pub": _allowed(publish), "sub": _allowed(subscribe)}


def _allowed(subjects: Sequence[str]) -> Body:
    # An empty list of what is allowed would mean "everything" to the server.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def _service(subject: str, answer_s: int) -> Body:
    shape = {"response_type": "Singleton", "response_threshold": answer_s * _NS}
    return {"name": subject, "subject": subject, "type": "service"} | shape


def _stream(subject: str) -> Body:
    return {"name": subject, "subject": subject, "type": "stream"}


def _import(kind: str, subject: str, account: str) -> Body:
    return {"name": subject, "subject": subject, "account": account, "type": kind}


# ---- files


def creds_text(creds: Creds) -> str:
    """The file that every client of NATS reads."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{creds.jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{creds.seed}\n------END USER NKEY SEED------\n"
    )


def parse_creds(text: str) -> Creds:
    """Raises ClaimsError."""
    found = _CREDS.search(text)
    if found is None:
        raise ClaimsError(
            "no credentials: right are a user's JWT and its nkey seed, each between lines that "
            "begin with -----BEGIN"
        )
    creds = Creds(found[1], found[2])
    if decoded(creds.jwt).get("sub") != public_key(creds.seed):
        raise ClaimsError("the seed is not that of the JWT")
    return creds
