"""What those who have no credentials of the bus yet say to the login service, and its answer.

Subject: ``login.token``, in an account that may do nothing else. The private key never travels: who
asks makes it and sends the public part, to which the JWT of the answer is bound.
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
    """A token of somebody who knows the sender, and the account that the sender wants to be in."""

    token: Annotated[str, Meta(min_length=1, max_length=MAX_TOKEN_CHARS)]
    key: Annotated[str, Meta(pattern=r"^U[A-Z2-7]{55}$(?!\n)")]  # public nkey of the user to be
    tenant: Name = ""  # exactly one of both is given
    cluster: Name = ""

    def __repr__(self) -> str:
        """Without the token."""
        return f"LoginRequest(key={self.key!r}, tenant={self.tenant!r}, cluster={self.cluster!r})"


class LoginReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="login.reply.v1"
):
    """The sender may come in until then."""

    jwt: str  # of the user whose key was sent: of no use without the private part
    ends_s: float


LoginAnswer = LoginReply | Refusal
