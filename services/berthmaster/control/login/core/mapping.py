"""Whose tokens are believed, and which of them stand for which tenant or cluster. Pure.

Rules of this file:

- What no rule names has no account. A rule names one whole identity or one value of one claim;
  there are no patterns.
- Who asks says which account it wants. So two clusters whose issuers have one name (a name that
  kubeadm gives to all) are told apart: each is asked only for the accounts that its rules name.
- A text that may come from a stranger is compared and never shown.
"""

import re
from collections.abc import Mapping as Named
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.lib.nats.subjects import SubjectError, token

SERVICE_ACCOUNT: Final = "system:serviceaccount:"
# Over TLS, or on this machine; with no user name in it.
_ASKABLE: Final = re.compile(
    r"(?:https://[A-Za-z0-9.:\[\]-]+|http://(?:127\.0\.0\.1|\[::1\]|localhost)(?::\d+)?)(?:/[^\s@]*)?"
)
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Algorithm = Literal["RS256", "ES256"]


class MappingError(ValueError):
    """The mapping is not what it should be; the text names the field."""


class ServiceAccountRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ServiceAccount that stands for a tenant or a cluster."""

    service_account: Text  # NAMESPACE/NAME
    tenant: str = ""
    cluster: str = ""


class ClaimRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim with this value, or with a list that holds it."""

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
    """A cluster whose API server is asked whether a ServiceAccount's token is good."""

    name: Text
    issuer: Text  # what its tokens say: --service-account-issuer of the API server
    audience: Text  # which tokens must be made for
    rules: Annotated[tuple[ServiceAccountRule, ...], Meta(min_length=1)]
    kubeconfig: str = ""  # "" = as for every other service of ours
    context: str = ""


class OidcIssuer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="oidc",
    tag_field="kind",
):
    """A provider of OpenID Connect."""

    name: Text
    issuer: Text
    audience: Text  # our client id there
    rules: Annotated[tuple[ClaimRule, ...], Meta(min_length=1)]
    jwks_url: str = ""  # "" = as the provider's discovery document says
    ca_file: str = ""  # "" = the system's authorities
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")


Issuer = KubernetesIssuer | OidcIssuer


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it: the file of ``--mapping-file``."""

    issuers: Annotated[tuple[Issuer, ...], Meta(min_length=1)]


class Wanted(NamedTuple):
    """The account that somebody asks for; one of both is ""."""

    tenant: str
    cluster: str

    @property
    def user(self) -> str:
        """Whose rights that means: a user of lib/access/permissions.py. Raises SubjectError."""
        return f"tenant.{token(self.tenant)}" if self.tenant else f"agent.{token(self.cluster)}"

    def __str__(self) -> str:
        return f"tenant {self.tenant}" if self.tenant else f"cluster {self.cluster}"


class Identity(NamedTuple):
    """Who a token was proved to be of."""

    subject: str
    claims: Named[str, Any]


def parse_mapping(text: bytes) -> Mapping:
    """Raises MappingError."""
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
            # Every pod has a token for that audience, and gives it to whatever it talks to there.
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
    """Whether a URL of a provider may be asked: over TLS, or on this machine."""
    return _ASKABLE.fullmatch(url) is not None


def candidates(mapping: Mapping, token_issuer: str, wanted: Wanted) -> list[Issuer]:
    """Who may be able to say that a token with this issuer stands for what is wanted."""
    return [
        issuer
        for issuer in mapping.issuers
        if issuer.issuer == token_issuer
        and any((rule.tenant, rule.cluster) == wanted for rule in issuer.rules)
    ]


def stands_for(issuer: Issuer, identity: Identity, wanted: Wanted) -> bool:
    """Whether a rule gives this identity what is wanted."""
    return any(
        (rule.tenant, rule.cluster) == wanted and _applies(rule, identity) for rule in issuer.rules
    )


def _applies(rule: Rule, identity: Identity) -> bool:
    if isinstance(rule, ServiceAccountRule):
        return identity.subject == SERVICE_ACCOUNT + rule.service_account.replace("/", ":")
    if rule.claim == "email" and identity.claims.get("email_verified") is not True:
        return False  # anybody may write any address there
    found = identity.claims.get(rule.claim)
    return rule.value in found if isinstance(found, list) else rule.value == found
