"""What the JWTs of accounts and users say, and who signed them."""

import base64
import json
from typing import Any

import nkeys
import pytest

from berthmaster.lib.access import claims
from berthmaster.lib.access.permissions import (
    APART,
    STREAMS,
    WHOLE_ROLES,
    account_of,
    grants,
    grants_of,
)
from berthmaster.lib.messages.api import GATEWAY_VERBS
from berthmaster.lib.messages.door import DOOR_VERBS
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.streams import stream_configs
from berthmaster.lib.nats.subjects import covers

KINDS: dict[str, jwts.Kind] = {
    "operator": "operator",
    **{name.lower(): "account" for name in claims.ALWAYS},
    "acme": "account",
    "evil": "account",
    "user": "user",
}
SEEDS = {
    name: jwts.new_seed(kind, bytes([number]) * 32)
    for number, (name, kind) in enumerate(KINDS.items())
}
KEYS = {name: jwts.public_key(seed) for name, seed in SEEDS.items()}
SHARED = {name: KEYS[name.lower()] for name in claims.ALWAYS}
CORE = claims.core(SHARED)
STREAMS_ACCOUNT = claims.streams(KEYS["streams"])


def verified(jwt: str, seed: str) -> bool:
    """Whether the JWT is signed with this seed, by the library's own check."""
    text, _, signature = jwt.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    try:
        return bool(nkeys.from_seed(seed.encode()).verify(text.encode(), raw))
    except nkeys.ErrInvalidSignature:
        return False


@pytest.mark.parametrize(
    ("name", "letter"), [("operator", "O"), ("core", "A"), ("acme", "A"), ("user", "U")]
)
def test_keys_are_of_their_kind(name: str, letter: str) -> None:
    assert KEYS[name][0] == SEEDS[name][1] == letter
    assert len(KEYS[name]) == 56


def test_a_jwt_says_who_signed_it_and_when_and_bears_that_signature() -> None:
    body = claims.tenant(KEYS["acme"], "acme", core=KEYS["core"], streams=KEYS["streams"])
    jwt = jwts.signed(body, SEEDS["operator"], now_s=1000.9, ends_s=2000.5)
    said = jwts.decoded(jwt)
    assert {name: said[name] for name in ("iss", "sub", "iat", "exp", "name")} == {
        "iss": KEYS["operator"],
        "sub": KEYS["acme"],
        "iat": 1000,
        "exp": 2000,
        "name": "T_acme",
    }
    assert json.loads(base64.urlsafe_b64decode(jwt.split(".")[0] + "==")) == {
        "typ": "JWT",
        "alg": "ed25519-nkey",
    }
    assert verified(jwt, SEEDS["operator"])
    assert not verified(jwt, SEEDS["evil"])
    # The same claims, signed later, still say the same; another name does not.
    assert jwts.says(jwt, body)
    assert not jwts.says(
        jwt, claims.tenant(KEYS["acme"], "evil", core=KEYS["core"], streams=KEYS["streams"])
    )


def reachable(exports: list[dict[str, Any]]) -> list[str]:
    return [each["subject"] for each in exports]


def test_core_exports_what_the_design_names_and_nothing_else() -> None:
    said = jwts.decoded(jwts.signed(CORE, SEEDS["operator"], now_s=0))["nats"]
    shapes = {
        each["subject"]: (
            each["type"],
            each.get("response_type"),
            each.get("response_threshold", 0) / 1e9,
        )
        for each in said["exports"]
    }
    assert shapes == {
        "berth.api.*.*": ("service", "Singleton", 15),
        "berth.agent.*.*": ("service", "Singleton", 60),
        "berth.operator.*": ("service", "Singleton", 15),
        "berth.inquiry.*": ("service", "Singleton", 15),
        "$SRV.>": ("service", "Stream", 15),
        "berth.figures.>": ("stream", None, 0),
        "berth.telemetry.>": ("stream", None, 0),
        "berth.held.>": ("stream", None, 0),
        "berth.assign.>": ("stream", None, 0),
    }


def matches(pattern: str, subject: str) -> bool:
    """Whether two patterns of subjects have a subject in common."""
    ours, theirs = pattern.split("."), subject.split(".")
    for one, other in zip(ours, theirs, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(ours) == len(theirs)


@pytest.mark.parametrize(
    "subject",
    [
        *("$JS.>", "JS.>", "$O.>", "$KV.>", "$SYS.>", "_INBOX.>", "_R_.>"),
        *(f"$JS.API.STREAM.INFO.{stream}" for stream in STREAMS),
        *(
            f"berth.{family}.>"
            for family in (
                *("workload", "fleet", "control", "lease", "decision", "dead"),
                *("archive", "event"),
            )
        ),
    ],
)
def test_core_exports_nothing_of_the_log_or_of_jetstream(subject: str) -> None:
    assert [each for each in reachable(CORE["nats"]["exports"]) if matches(each, subject)] == []


def test_what_tenants_and_clusters_ask_comes_by_lanes_and_nothing_else_does() -> None:
    mappings = CORE["nats"]["mappings"]
    asked = {f"berth.api.*.{verb}" for verb in GATEWAY_VERBS}
    asked |= {f"berth.agent.*.{verb}" for verb in DOOR_VERBS}
    assert set(mappings) == asked
    assert mappings["berth.api.*.submit"] == [
        {"subject": "berth.lane.{{partition(16,1)}}.api.{{wildcard(1)}}.submit", "weight": 100}
    ]


def test_a_tenant_imports_its_own_api_events_and_figures_and_has_no_jetstream() -> None:
    said = claims.tenant(KEYS["acme"], "acme", core=KEYS["core"], streams=KEYS["streams"])["nats"]
    assert [(each["type"], each["subject"], each["account"]) for each in said["imports"]] == [
        ("service", "berth.api.acme.*", KEYS["core"]),
        ("stream", "berth.stored.workload.acme.>", KEYS["streams"]),
        ("stream", "berth.figures.acme.>", KEYS["core"]),
    ]
    assert said["imports"][1]["local_subject"] == "berth.event.acme.>"
    assert said["exports"] == []
    limits = said["limits"]
    assert {name: limits[name] for name in ("conn", "subs", "payload", "leaf")} == {
        "conn": 20,
        "subs": 200,
        "payload": 262_144,
        "leaf": 0,
    }
    assert {limits[name] for name in ("mem_storage", "disk_storage", "streams", "consumer")} == {0}
    assert said["default_permissions"] == {
        "pub": {"allow": ["berth.api.acme.*"]},
        "sub": {"allow": ["berth.event.acme.>", "berth.figures.acme.>", "_INBOX.>"]},
    }


def test_a_cluster_imports_its_own_door_and_assignments() -> None:
    said = claims.cluster(KEYS["acme"], "red", core=KEYS["core"])["nats"]
    assert [(each["type"], each["subject"], each["account"]) for each in said["imports"]] == [
        ("service", "berth.agent.red.*", KEYS["core"]),
        ("stream", "berth.assign.red.>", KEYS["core"]),
    ]
    assert said["default_permissions"]["sub"] == {
        "allow": ["berth.assign.red.>", "berth.agent.red.telemetry", "_INBOX.>"]
    }
    limits = said["limits"]
    assert [limits[name] for name in ("conn", "subs", "payload", "leaf", "streams")] == [
        *(1000, 4000, 524_288, 2, 0)
    ]


def test_streams_alone_has_jetstream_and_imports_nothing() -> None:
    others = [
        CORE,
        claims.system(KEYS["acme"], core=KEYS["core"]),
        claims.cluster(KEYS["acme"], "red", core=KEYS["core"]),
    ]
    assert STREAMS_ACCOUNT["nats"]["limits"]["disk_storage"] == -1
    assert STREAMS_ACCOUNT["nats"]["imports"] == []
    assert [each["nats"]["limits"]["disk_storage"] for each in others] == [0, 0, 0]
    assert [each["nats"]["exports"] for each in others[1:]] == [[], []]


def test_the_servers_own_account_imports_one_stream_of_the_core_and_asks_nothing() -> None:
    said = claims.system(KEYS["acme"], core=KEYS["core"])["nats"]
    assert [(each["type"], each["subject"], each["account"]) for each in said["imports"]] == [
        ("stream", "berth.figures.>", KEYS["core"])
    ]
    assert said["imports"][0]["subject"] in {each["subject"] for each in CORE["nats"]["exports"]}


def test_no_account_imports_a_service_under_a_literal_subject() -> None:
    """The server leads an answer on through a literal import that its reply subject names."""
    core, streams = KEYS["core"], KEYS["streams"]
    accounts = [
        CORE,
        claims.tenant(KEYS["acme"], "acme", core=core, streams=streams),
        claims.cluster(KEYS["acme"], "red", core=core),
        claims.login(KEYS["acme"], signer=KEYS["signer"]),
        *(
            claims.apart(
                KEYS["acme"],
                name,
                keys=SHARED,
                publish=grants_of(users).publish,
                subscribe=(),
            )
            for name, users in APART.items()
        ),
    ]
    for account in accounts:
        asked = [each for each in account["nats"]["imports"] if each["type"] == "service"]
        assert asked or account["name"] == claims.SIGNER  # which asks nobody
        for each in asked:
            local = each.get("local_subject", each["subject"])
            assert {"*", ">"} & set(local.split(".")), (account["name"], local)


def test_no_user_is_in_streams() -> None:
    assert [user for user in WHOLE_ROLES if account_of(user) == claims.STREAMS] == []


@pytest.mark.parametrize("name", APART)
def test_account_apart_imports_what_its_users_may_do(name: str) -> None:
    allowed = grants_of(APART[name])
    said = claims.apart(
        KEYS["acme"],
        name,
        keys=SHARED,
        publish=allowed.publish,
        subscribe=allowed.subscribe,
    )["nats"]
    local = {each.get("local_subject", each["subject"]) for each in said["imports"]}
    makes = [each for each in local if "CONSUMER.CREATE" in each]
    assert bool(makes) == (name in ("SETUP", "RESTORER"))
    assert not [each for each in local if "CONSUMER.DELETE" in each]
    # The resolver's user may purge snapshots, which its rights say.
    assert any("PURGE" in each for each in local) == (name == "RESOLVER")
    own = {each["subject"] for each in said["exports"]} | {"_R_.>"}
    for subject in allowed.publish:
        assert any(covers(each, subject) for each in local | own), subject
    for subject in allowed.subscribe:
        assert any(covers(each, subject) or covers(subject, each) for each in local | own), subject
    assert said["default_permissions"]["pub"] == {"allow": list(allowed.publish)}
    offered = {
        KEYS["resolver"]: [claims.QUALITY],
        KEYS["core"]: reachable(CORE["nats"]["exports"]),
        KEYS["streams"]: reachable(STREAMS_ACCOUNT["nats"]["exports"]),
    }
    for each in said["imports"]:
        exports = offered[each["account"]]
        assert any(covers(one, each["subject"]) for one in exports), each["subject"]


def test_core_imports_no_way_to_make_a_consumer() -> None:
    assert not [each for each in CORE["nats"]["imports"] if "CONSUMER.CREATE" in each["subject"]]


@pytest.mark.parametrize("user", [user for user in WHOLE_ROLES if account_of(user) == claims.CORE])
def test_what_a_service_stores_or_asks_of_jetstream_leads_to_streams(user: str) -> None:
    """A subject that CORE did not import would be answered by nobody."""
    imports = {
        each.get("local_subject", each["subject"])
        for each in CORE["nats"]["imports"]
        if each["type"] == "service"
    }
    stored = [subject for config in stream_configs() for subject in config.get("subjects", ())]
    for subject in grants(user).publish:
        if subject.startswith(("$JS", "JS.")) or any(covers(each, subject) for each in stored):
            assert any(covers(each, subject) for each in imports), subject


def test_who_may_nothing_is_denied_everything_since_nothing_would_mean_all() -> None:
    said = claims.user(KEYS["user"], "mute", publish=(), subscribe=("_INBOX.mute.>",))["nats"]
    assert (said["pub"], said["sub"]) == ({"deny": [">"]}, {"allow": ["_INBOX.mute.>"]})


@pytest.mark.parametrize("user", ["gateway", "door", "resolver", "multikueue", "usage"])
def test_answerer_writes_to_no_inbox_of_its_own_account(user: str) -> None:
    allowed = grants(user)
    said = claims.user(KEYS["user"], user, publish=allowed.publish, subscribe=allowed.subscribe)
    may = set(said["nats"]["pub"]["allow"])
    assert "_R_.>" in may
    # Nobody asks in CORE itself but of JetStream: an answer to an inbox there would be a lie.
    assert not [each for each in may if "_INBOX" in each or covers(each, "_INBOX.door.x.1")]
    assert "resp" not in said["nats"]


def test_revocations_stand_in_the_account_and_none_changes_nothing() -> None:
    plain = claims.tenant(KEYS["acme"], "acme", core=KEYS["core"], streams=KEYS["streams"])
    revoked = claims.tenant(
        KEYS["acme"], "acme", core=KEYS["core"], streams=KEYS["streams"], revocations={"*": 7}
    )
    assert "revocations" not in plain["nats"]
    assert revoked["nats"]["revocations"] == {"*": 7}


def test_credentials_are_read_as_they_are_written() -> None:
    body = claims.user(KEYS["user"], "me", publish=("a",), subscribe=("b",))
    made = jwts.Creds(jwts.signed(body, SEEDS["acme"], now_s=1), SEEDS["user"])
    assert jwts.parse_creds(jwts.creds_text(made)) == made
    # Also as other tools write them, with other words between the lines.
    other = jwts.creds_text(made).replace("\n\n", "\n\n*** IMPORTANT ***\nkeep it\n\n")
    assert jwts.parse_creds(other) == made


@pytest.mark.parametrize("seed", ["", "SU", "SUNOTASEED", SEEDS["user"][:-1] + "!", "nonsense"])
def test_what_is_no_seed_is_told_without_it(seed: str) -> None:
    with pytest.raises(jwts.ClaimsError, match="no nkey seed") as caught:
        jwts.public_key(seed)
    assert not seed or seed not in str(caught.value)


@pytest.mark.parametrize("jwt", ["", "a.b", "a.b.c", "e30.e30.e30", "eyJ.W10.x"])
def test_what_is_no_jwt_is_told(jwt: str) -> None:
    with pytest.raises(jwts.ClaimsError, match="no JWT"):
        jwts.decoded(jwt)
