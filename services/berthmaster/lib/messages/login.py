"""Request and reply of the login service, for clients without a NATS credential.

Subject: ``login.token``, in an account without other rights. The client creates a key pair and
sends the public key only. The JWT in the reply is bound to that key.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.api import Refusal

MAX_TOKEN_CHARS = 12 * 1024
MAX_LOGIN_BYTES = 16 * 1024  # of one request; the account's limit, too

Name = Annotated[str, Meta(max_length=253)]


class LoginRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An identity token, and the account that the sender wants to enter."""

    token: Annotated[str, Meta(min_length=1, max_length=MAX_TOKEN_CHARS)]  # identity token
    key: Annotated[str, Meta(pattern=r"^U[A-Z2-7]{55}$(?!\n)")]
    # key: public nkey of the future NATS user
    tenant: Name = ""  # tenant to enter; exactly one of tenant and cluster is set
    cluster: Name = ""  # cluster to enter; exactly one of tenant and cluster is set

    def __repr__(self) -> str:
        """Without the token."""
        return f"LoginRequest(key={self.key!r}, tenant={self.tenant!r}, cluster={self.cluster!r})"


class LoginReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="login.reply.v1"
):
    """A NATS credential."""

    jwt: str  # JWT bound to the sent key, useless without the private key
    ends_s: float  # expiry, in seconds since 1970


LoginAnswer = LoginReply | Refusal
