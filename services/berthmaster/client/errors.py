"""Errors that a program can handle differently, grouped by the next action.

::

    BerthError
    ├── RefusedError          the request is wrong, or impossible now: see ``refusal``
    ├── TooLargeError         the request exceeds the bus's limit, and was not sent
    ├── NotAllowedError       the user lacks the rights: use other rights or another tenant
    ├── UnavailableError      no answer in time: try again; submits are safe to repeat
    └── UnexpectedReplyError  the answer is unreadable: client and services differ in version
"""

from berthmaster.lib.messages.api import Refusal


class BerthError(Exception):
    """Base class of all errors between a program and Berthmaster."""


class RefusedError(BerthError):
    """Nothing was changed. ``refusal`` names the field, its value and a correct value."""

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
    """The server denies this user the connection or the subject."""


class UnavailableError(BerthError):
    """No connection, or no answer within the time limit."""


class UnexpectedReplyError(BerthError):
    """This client does not understand the answer."""


def describe(refusal: Refusal) -> str:
    """Return a refusal as one line of text."""
    where = f"{refusal.field}: " if refusal.field else ""
    quoted = refusal.value.startswith('"')  # the gateway reports text values as JSON
    value = f"{refusal.value if quoted else repr(refusal.value)} " if refusal.value else ""
    return f"{where}{value}refused ({refusal.code}): {refusal.expected}"
