"""Which identity stands for which account, and mappings that are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.login.core.bucket import Bucket
from berthmaster.control.login.core.mapping import (
    Identity,
    Issuer,
    MappingError,
    Wanted,
    candidates,
    parse_mapping,
    stands_for,
)

ID = "https://id.example.com"
KUBE = "https://kubernetes.default.svc.cluster.local"
ACME, RED, BLUE = Wanted("acme", ""), Wanted("", "red"), Wanted("", "blue")


def oidc(*rules: dict[str, str], **also: Any) -> dict[str, Any]:
    made = {"kind": "oidc", "name": "people", "issuer": ID, "audience": "berthmaster"}
    return made | {"rules": rules} | also


def kubernetes(name: str, *rules: dict[str, str], **also: Any) -> dict[str, Any]:
    made = {"kind": "kubernetes", "name": name, "issuer": KUBE, "audience": "berthmaster"}
    return made | {"rules": rules} | also


def issuers(*made: dict[str, Any]) -> tuple[Issuer, ...]:
    return parse_mapping(json.dumps({"issuers": made}).encode()).issuers


GROUP = {"claim": "groups", "value": "ml", "tenant": "acme"}
AGENT = {"service_account": "berth-system/berth-agent", "cluster": "red"}


@pytest.mark.parametrize(
    ("claims", "lets_in"),
    [
        ({"groups": ["all", "ml"]}, True),
        ({"groups": "ml"}, True),
        ({"groups": ["all", "mlx"]}, False),
        ({"groups": "all ml"}, False),
        ({"groups": {"ml": True}}, False),
        ({"groups": None}, False),
        ({"group": ["ml"]}, False),
        ({}, False),
    ],
)
def test_a_claim_has_the_value_or_a_list_that_holds_it(
    claims: dict[str, Any], lets_in: bool
) -> None:
    (issuer,) = issuers(oidc(GROUP))
    ann = Identity("ann", claims)
    assert stands_for(issuer, ann, ACME) is lets_in
    assert not stands_for(issuer, ann, Wanted("rival", ""))
    assert not stands_for(issuer, ann, Wanted("", "acme"))


def test_an_address_that_its_provider_did_not_verify_is_nobodys() -> None:
    (issuer,) = issuers(oidc({"claim": "email", "value": "a@b.example", "tenant": "acme"}))
    address = {"email": "a@b.example"}
    for verified, lets_in in ((True, True), (False, False), ("true", False), (None, False)):
        ann = Identity("ann", address | {"email_verified": verified})
        assert stands_for(issuer, ann, ACME) is lets_in


@given(st.text(max_size=60))
def test_only_the_whole_name_of_a_service_account_is_it(name: str) -> None:
    (issuer,) = issuers(kubernetes("red", AGENT))
    for subject in (name, f"system:serviceaccount:{name}"):
        right = subject == "system:serviceaccount:berth-system:berth-agent"
        assert stands_for(issuer, Identity(subject, {"sub": subject}), RED) is right


def test_issuers_of_one_name_are_told_apart_by_what_is_wanted() -> None:
    red, blue, people = issuers(
        kubernetes("red", AGENT), kubernetes("blue", AGENT | {"cluster": "blue"}), oidc(GROUP)
    )
    mapping = parse_mapping(
        json.dumps(
            {"issuers": [kubernetes("red", AGENT), kubernetes("blue", AGENT | {"cluster": "blue"})]}
        ).encode()
    )
    assert candidates(mapping, KUBE, RED) == [red]
    assert candidates(mapping, KUBE, BLUE) == [blue]
    assert candidates(mapping, KUBE, ACME) == []
    assert candidates(mapping, ID, RED) == []
    assert people not in (red, blue)
    agent = Identity("system:serviceaccount:berth-system:berth-agent", {})
    assert stands_for(red, agent, RED)
    assert not stands_for(red, agent, BLUE)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([], "Expected `array` of length >= 1"),
        ([oidc()], r"length >= 1 - at `\$.issuers\[0\].rules`"),
        ([oidc(GROUP, kind="ldap")], "Invalid value 'ldap'"),
        ([oidc(GROUP, audience="")], r"length >= 1 - at `\$.issuers\[0\].audience`"),
        ([oidc(GROUP, algorithms=["none"])], "Invalid enum value 'none'"),
        ([oidc(GROUP, algorithms=["HS256"])], "Invalid enum value 'HS256'"),
        ([oidc(GROUP, algorithms=[])], "length >= 1"),
        ([oidc(GROUP | {"clusters": "red"})], "unknown field `clusters`"),
        ([oidc(GROUP, tenants="x")], "unknown field `tenants`"),
        ([oidc(GROUP | {"cluster": "red"})], r"issuers\[0\].rules\[0\]: right is either"),
        ([oidc({"claim": "a", "value": "b"})], r"issuers\[0\].rules\[0\]: right is either"),
        ([oidc(GROUP | {"value": ""})], "length >= 1"),
        ([oidc(GROUP | {"tenant": "a" * 600})], r"issuers\[0\].rules\[0\]: the name"),
        ([oidc(GROUP), oidc(GROUP)], r"issuers\[0\].name: two issuers are named 'people'"),
        ([oidc(GROUP, issuer="http://id.example.com")], r"issuers\[0\].issuer: right is https"),
        ([oidc(GROUP, issuer="https://u:p@id.example")], r"issuers\[0\].issuer: right is https"),
        ([oidc(GROUP, jwks_url="file:///etc/passwd")], r"issuers\[0\].jwks_url: right is https"),
        ([kubernetes("red", AGENT, audience=KUBE)], r"issuers\[0\].audience: must be one of our"),
        ([kubernetes("red", AGENT | {"service_account": "agent"})], "right is NAMESPACE/NAME"),
        ([kubernetes("red", AGENT | {"service_account": "a/b:c"})], "right is NAMESPACE/NAME"),
        ([kubernetes("red", GROUP)], "unknown field `claim`"),
    ],
)
def test_a_mapping_that_is_wrong_is_told_where(made: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(MappingError, match=why):
        issuers(*made)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(2.0, 3)
    assert [bucket.take(7.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(7.5), bucket.take(7.5), bucket.take(8.0)] == [True, False, True]
