"""What a program that uses the client has to tell apart, by what it can do next.

::

    BerthError
    ├── RefusedError          the request is wrong, or cannot be carried out now: see ``refusal``
    ├── TooLargeError         the request is larger than the bus takes: it was not sent
    ├── NotAllowedError       this user may not do that: other rights or another tenant are needed
    ├── UnavailableError      nobody answered in time: try again; submits are safe to repeat
    └── UnexpectedReplyError  the answer cannot be read: client and services differ in version
"""

from berthmaster.lib.messages.api import Refusal


class BerthError(Exception):
    """Whatever went wrong between a program and Berthmaster."""


class RefusedError(BerthError):
    """Nothing was changed; ``refusal`` names the field, its value and what would be right."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(describe(refusal))
        self.refusal = refusal


class TooLargeError(BerthError):
    """The request was not sent."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the request has {size_bytes:,} bytes, and the server takes at most {limit_bytes:,}"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NotAllowedError(BerthError):
    """The server does not let this user in, or not onto this subject."""


class UnavailableError(BerthError):
    """No connection, or no answer within the time limit."""


class UnexpectedReplyError(BerthError):
    """Something answered that this client does not understand."""


def describe(refusal: Refusal) -> str:
    """A refusal as one line for people."""
    where = f"{refusal.field}: " if refusal.field else ""
    quoted = refusal.value.startswith('"')  # text that was sent comes as JSON
    value = f"{refusal.value if quoted else repr(refusal.value)} " if refusal.value else ""
    return f"{where}{value}refused ({refusal.code}): {refusal.expected}"
