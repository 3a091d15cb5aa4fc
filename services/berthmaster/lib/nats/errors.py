"""Errors of the bus, named by what the caller can do next.

::

    BusError
    ├── NotConnected      the server is away: wait, or return the work
    ├── NoAnswer          no answer in time, may have been done: read back or repeat safely
    ├── NotPermitted      the server denies this user: an operator must grant the permission
    ├── TooLarge          more bytes than the server accepts: repeating is pointless
    ├── ApiError          JetStream refused, with a number: see ``code``
    └── StreamReplaced    the stream was replaced: start again with an empty state
"""


class BusError(Exception):
    """Any failure between this process and the bus."""


class NotConnected(BusError):
    """The server is away, or the connection was closed."""


class NoAnswer(BusError):
    """A request was sent, and no answer came in time or no service listens."""


class NotPermitted(BusError):
    """The server's permissions forbid the request. Nothing was done, and repeating is pointless."""


class TooLarge(BusError):
    """The message exceeds the server's limit."""


class ApiError(BusError):
    """JetStream refused. ``code`` is the err_code, ``description`` the server's text."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} (JetStream error {code})")
        self.code = code
        self.description = description


class StreamReplaced(BusError):
    """The stream was deleted and created again, so its sequences mean something else now."""
