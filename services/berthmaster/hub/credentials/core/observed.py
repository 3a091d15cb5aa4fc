"""The observed state of a cluster, and the findings of steps. Pure.

No class shows a token when printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from berthmaster.hub.credentials.core.names import digest

LEAST_LIFE_S: Final = 600.0  # seconds; minimum lifetime of a token that an API server grants
SHARE: Final = 2 / 3  # fraction of its lifetime after which a bootstrap's token is renewed


class Endpoint(NamedTuple):
    """The address of an API server and its CA (PEM; empty = the system's authorities)."""

    server: str
    ca: bytes = b""
    server_name: str = ""
    proxy: str = ""

    @property
    def fingerprint(self) -> str:
        """Return a digest of the endpoint: a different digest means a different cluster."""
        return digest(self.server, self.ca.decode("latin-1"), self.server_name, self.proxy)


class Bootstrap(NamedTuple):
    """An operator's kubeconfig for the worker, used to create Berthmaster's objects there."""

    endpoint: Endpoint
    secret: str  # namespace/name
    version: str  # resource version of the Secret; another version may hold other credentials

    @property
    def target(self) -> str:
        """Return the digest of the endpoint for which a token was created."""
        return self.endpoint.fingerprint


@dataclass(frozen=True)
class Token:
    """A token from OCM's addon, or the credential that a plugin printed."""

    serial: str
    text: str = field(repr=False)  # "" = client certificate only
    expires_at_s: float = 0.0  # 0 = unknown
    # client certificate and key in PEM form; empty = none
    pair: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)


class Life(NamedTuple):
    """The claims of a ServiceAccount's token."""

    namespace: str
    account: str
    issued_at_s: float
    expires_at_s: float

    @property
    def lasts_s(self) -> float:
        """Return the token's duration, at least the minimum that an API server grants."""
        return max(LEAST_LIFE_S, self.expires_at_s - self.issued_at_s)

    def is_due(self, now_s: float, renew_after_s: float) -> bool:
        """Return whether to renew; ``renew_after_s`` 0 = at two thirds of the lifetime."""
        after_s = renew_after_s or SHARE * (self.expires_at_s - self.issued_at_s)
        return now_s >= self.issued_at_s + after_s


class Managed(NamedTuple):
    """Access by an account of Open Cluster Management, or by an access provider of the cluster's
    ClusterProfile; None = not known yet."""

    endpoint: Endpoint | None
    token: Token | None
    trouble: str = ""  # message of the account's conditions, or of the plugin's failure
    provider: str = ""  # "" = Open Cluster Management

    @property
    def target(self) -> str:
        """Return the digest of the endpoint for which a token was created."""
        return self.endpoint.fingerprint if self.endpoint is not None else ""


class Refused(NamedTuple):
    """A refused bootstrap Secret or access provider, with the field and the error."""

    where: str  # kind and name of the object
    field: str
    why: str
    reason: str = "BootstrapRefused"  # of the event


class Referenced(NamedTuple):
    """Kueue runs the plugin of an access provider: MultiKueueCluster refers to the profile."""

    profile: str
    provider: str


Source = Bootstrap | Managed | Refused | Referenced


class Held(NamedTuple):
    """The Secret that Kueue reads, if Berthmaster owns it."""

    target: str
    told: str
    serial: str
    issued_at_s: float
    expires_at_s: float
    usable: bool  # True with a kubeconfig inside
    managed: bool  # True for a token of OCM or of an access provider
    version: str
    uid: str


class Registration(NamedTuple):
    """Berthmaster's MultiKueueCluster."""

    right: bool  # True if it names Berthmaster's Secret, or the profile that Kueue shall use
    version: str
    uid: str
    refusal: str = ""  # why Kueue does not use the profile


class Description(NamedTuple):
    """The access provider that a ClusterProfile by Berthmaster shall name."""

    namespace: str
    provider: Mapping[str, Any] | None  # None = no entry


class Observed(NamedTuple):
    """The hub's state of one cluster."""

    known: bool = False
    told: str = ""  # digest of the endpoint in ManagedCluster and ClusterProfile
    source: Source | None = None
    secret: Held | None = None
    registered: Registration | None = None
    listed_by: tuple[str, ...] = ()  # names of MultiKueueConfigs
    requested: bool = False  # OCM's objects exist and are correct
    asked: bool = False  # one of OCM's objects by Berthmaster exists
    foreign: str = ""  # another client's object under Berthmaster's name
    undescribed: Description | None = None  # a profile of Berthmaster's with another entry


@dataclass(frozen=True)
class Minted:
    """A verified token that is not yet in Kueue's Secret."""

    target: str
    serial: str
    issued_at_s: float
    expires_at_s: float
    token: str = field(repr=False)
    managed: bool = False
    pair: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)


class Survey(NamedTuple):
    """Berthmaster's objects on a worker."""

    target: str
    version: str  # resource version of the bootstrap Secret
    bound: Mapping[str, float]  # serial -> creation time by the hub's clock
    account: bool  # account or roles exist
    prepared: bool = False  # account and roles are correct
