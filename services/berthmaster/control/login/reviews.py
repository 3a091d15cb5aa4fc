"""Check a ServiceAccount's token at the cluster's API server (TokenReview).

A token thus ends with its pod and its ServiceAccount. The server must confirm our audience: a
server without support for audiences only confirms a token for itself.
"""

from pathlib import Path
from typing import Final, Self

from berthmaster.control.login.core.errors import Refused, Unavailable
from berthmaster.control.login.core.mapping import SERVICE_ACCOUNT, Identity, KubernetesIssuer
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.objects import Struct
from berthmaster.lib.kube.resources import TOKEN_REVIEWS
from berthmaster.lib.kube.service_client import access_by
from berthmaster.lib.runtime.log import LogLike

REVIEW_LIMIT_S: Final = 5.0
MAX_REVIEWS: Final = 16  # at once


class _User(Struct, frozen=True):
    username: str = ""


class _Status(Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] | None = ()


class _Review(Struct, frozen=True):
    status: _Status = _Status()


class Reviewer:
    """One cluster's API server."""

    def __init__(self, issuer: KubernetesIssuer, client: Client) -> None:
        """Store the client. Call ``open`` instead."""
        self._issuer = issuer
        self._client = client

    @classmethod
    async def open(cls, issuer: KubernetesIssuer, log: LogLike) -> Self:
        """Create the client, without a request. Raises BadConfig."""
        client = await Client.open(
            await access_by(Path(issuer.kubeconfig) if issuer.kubeconfig else None, issuer.context),
            user_agent="berthmaster-login",
            log=log,
            timeout_s=REVIEW_LIMIT_S,
            max_in_flight=MAX_REVIEWS,
        )
        return cls(issuer, client)

    async def close(self) -> None:
        await self._client.close()

    async def identity(self, token: str) -> Identity:
        """Return the identity of a token. Raises Refused, Unavailable."""
        body = {
            "apiVersion": TOKEN_REVIEWS.group_version,
            "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": [self._issuer.audience]},
        }
        try:
            review = await self._client.create(TOKEN_REVIEWS.path(), body, _Review)
        except KubernetesError as error:
            # A server's error may repeat the request.
            why = type(error).__name__
            raise Unavailable(f"{self._issuer.name}: its API server does not say ({why})") from None
        status = review.status
        if not status.authenticated:
            raise Refused("the cluster's API server does not know it, or not for our audience")
        if self._issuer.audience not in (status.audiences or ()):
            raise Refused("it was made for another audience")
        if not status.user.username.startswith(SERVICE_ACCOUNT):
            raise Refused("it is no ServiceAccount's")
        return Identity(status.user.username, {})
