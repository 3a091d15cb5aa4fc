"""Trusted issuers, and the tenant or cluster that each token stands for. Pure.

- Without a rule there is no account. A rule names one whole identity or one value of one claim.
  There are no patterns.
- A client names the wanted account. Example: two clusters have issuers with the same name, as
  kubeadm gives to all. Each issuer is asked only for the accounts in its rules.
- A text from an unauthenticated client is compared and never shown.
"""

import re
from collections.abc import Mapping as Named
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.lib.nats.subjects import SubjectError, token

SERVICE_ACCOUNT: Final = "system:serviceaccount:"
# Over TLS, or on this machine, without a user name.
_ASKABLE: Final = re.compile(
    r"(?:https://[A-Za-z0-9.:\[\]-]+|http://(?:127\.0\.0\.1|\[::1\]|localhost)(?::\d+)?)(?:/[^\s@]*)?"
)
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Algorithm = Literal["RS256", "ES256"]


class MappingError(ValueError):
    """The mapping is invalid. The text names the field."""


class ServiceAccountRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ServiceAccount that stands for a tenant or a cluster."""

    service_account: Text  # NAMESPACE/NAME
    tenant: str = ""
    cluster: str = ""


class ClaimRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim with this value, or with a list that contains the value."""

    claim: Text
    value: Text
    tenant: str = ""
    cluster: str = ""


Rule = ServiceAccountRule | ClaimRule


class KubernetesIssuer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="kubernetes",
    tag_field="kind",
):
    """A cluster whose API server checks tokens of ServiceAccounts."""

    name: Text
    issuer: Text  # `iss` of its tokens: --service-account-issuer of the API server
    audience: Text  # required audience of tokens
    rules: Annotated[tuple[ServiceAccountRule, ...], Meta(min_length=1)]
    kubeconfig: str = ""  # "" = as in all other services of ours
    context: str = ""


class OidcIssuer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="oidc",
    tag_field="kind",
):
    name: Text
    issuer: Text
    audience: Text  # our client id at the provider
    rules: Annotated[tuple[ClaimRule, ...], Meta(min_length=1)]
    jwks_url: str = ""  # "" = as in the provider's discovery document
    ca_file: str = ""  # "" = the system's authorities
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")


Issuer = KubernetesIssuer | OidcIssuer


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of ``--mapping-file``."""

    issuers: Annotated[tuple[Issuer, ...], Meta(min_length=1)]


class Wanted(NamedTuple):
    """The wanted account: a tenant or a cluster, the other is ""."""

    tenant: str
    cluster: str

    @property
    def user(self) -> str:
        """Return the user in lib/access/permissions.py. Raises SubjectError."""
        return f"tenant.{token(self.tenant)}" if self.tenant else f"agent.{token(self.cluster)}"

    def __str__(self) -> str:
        return f"tenant {self.tenant}" if self.tenant else f"cluster {self.cluster}"


class Identity(NamedTuple):
    """The proven identity of a token."""

    subject: str
    claims: Named[str, Any]


def parse_mapping(text: bytes) -> Mapping:
    """Return the parsed mapping. Raises MappingError."""
    try:
        mapping = msgspec.json.decode(text, type=Mapping)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MappingError(str(error)) from None
    names = [issuer.name for issuer in mapping.issuers]
    for number, issuer in enumerate(mapping.issuers):
        where = f"issuers[{number}]"
        if names.count(issuer.name) > 1:
            raise MappingError(f"{where}.name: two issuers are named {issuer.name!r}")
        _check_rules(issuer, where)
        if isinstance(issuer, OidcIssuer):
            _check_url(issuer.issuer, f"{where}.issuer")
            if issuer.jwks_url:
                _check_url(issuer.jwks_url, f"{where}.jwks_url")
        elif issuer.audience == issuer.issuer:
            # Every pod has a token for that audience, and sends the token to any server of that
            # audience.
            raise MappingError(
                f"{where}.audience: must be one of our own, such as berthmaster; tokens for the "
                "API server itself are not to be sent elsewhere"
            )
    return mapping


def _check_rules(issuer: Issuer, where: str) -> None:
    rules: tuple[Rule, ...] = issuer.rules
    for number, rule in enumerate(rules):
        at = f"{where}.rules[{number}]"
        if bool(rule.tenant) == bool(rule.cluster):
            raise MappingError(f"{at}: right is either tenant or cluster")
        try:
            token(rule.tenant or rule.cluster)
        except SubjectError as error:
            raise MappingError(f"{at}: {error}") from None
        if isinstance(rule, ServiceAccountRule):
            parts = rule.service_account.split("/")
            if len(parts) != 2 or not all(parts) or ":" in rule.service_account:
                raise MappingError(f"{at}.service_account: right is NAMESPACE/NAME")


def _check_url(url: str, where: str) -> None:
    if not askable(url):
        raise MappingError(f"{where}: right is https://HOST…, without a user name")


def askable(url: str) -> bool:
    """Return whether a provider's URL may be used: over TLS, or on this machine."""
    return _ASKABLE.fullmatch(url) is not None


def candidates(mapping: Mapping, token_issuer: str, wanted: Wanted) -> list[Issuer]:
    """Return the issuers of this name with a rule for the wanted account."""
    return [
        issuer
        for issuer in mapping.issuers
        if issuer.issuer == token_issuer
        and any((rule.tenant, rule.cluster) == wanted for rule in issuer.rules)
    ]


def stands_for(issuer: Issuer, identity: Identity, wanted: Wanted) -> bool:
    """Return whether a rule maps this identity to the wanted account."""
    return any(
        (rule.tenant, rule.cluster) == wanted and _applies(rule, identity) for rule in issuer.rules
    )


def _applies(rule: Rule, identity: Identity) -> bool:
    if isinstance(rule, ServiceAccountRule):
        return identity.subject == SERVICE_ACCOUNT + rule.service_account.replace("/", ":")
    if rule.claim == "email" and identity.claims.get("email_verified") is not True:
        return False  # anyone may write any address there
    found = identity.claims.get(rule.claim)
    return rule.value in found if isinstance(found, list) else rule.value == found
