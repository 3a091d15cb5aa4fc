"""The steps that the core asks for, each about one cluster. Pure."""

from typing import NamedTuple

from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Endpoint,
    Held,
    Minted,
    Registration,
    Token,
)
from berthmaster.lib.kube.controller.shell_contract import KubeEvent


class Prepare(NamedTuple):
    """Make account and rights on the worker, and look which bound Secrets are there."""

    cluster: str
    source: Bootstrap


class Look(NamedTuple):
    cluster: str
    source: Bootstrap


class Mint(NamedTuple):
    """A bound Secret, a token for it, and a real call with that token."""

    cluster: str
    source: Bootstrap
    serial: str


class Publish(NamedTuple):
    """Put a verified token where Kueue reads it."""

    cluster: str
    endpoint: Endpoint
    minted: Minted
    told: str
    held: Held | None


class Register(NamedTuple):
    """Make the MultiKueueCluster, or let it name our Secret."""

    cluster: str
    registered: Registration | None


class Sweep(NamedTuple):
    """Delete bound Secrets, which ends their tokens."""

    cluster: str
    source: Bootstrap
    serials: tuple[str, ...]


class Check(NamedTuple):
    """A real call with the token that Kueue has."""

    cluster: str
    serial: str


class Request(NamedTuple):
    """Ask OCM for an account and its rights."""

    cluster: str


class Adopt(NamedTuple):
    """A real call with the token that OCM brought."""

    cluster: str
    endpoint: Endpoint
    token: Token


class Unregister(NamedTuple):
    """Delete the MultiKueueCluster."""

    cluster: str
    registered: Registration


class Revoke(NamedTuple):
    """Delete all of ours on the worker."""

    cluster: str
    source: Bootstrap


class Release(NamedTuple):
    """Delete OCM's objects, and with them the account."""

    cluster: str


class Empty(NamedTuple):
    """Take the kubeconfig out of the hub's Secret; what is to be revoked stays noted there."""

    cluster: str
    held: Held


class Forget(NamedTuple):
    """Delete the hub's Secret."""

    cluster: str
    held: Held


Step = (
    Prepare
    | Look
    | Mint
    | Publish
    | Register
    | Sweep
    | Check
    | Request
    | Adopt
    | Unregister
    | Revoke
    | Release
    | Empty
    | Forget
)

Instruction = Step | KubeEvent
