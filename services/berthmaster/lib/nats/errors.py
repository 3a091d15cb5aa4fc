"""What can go wrong on the bus, named by what the caller can do next.

::

    BusError
    ├── NotConnected      the server is away: wait for it, or give the work back
    ├── NoAnswer          nobody answered in time: it may have been done; read back or repeat safely
    ├── NotPermitted      the server does not allow it to this user: a person must
    ├── TooLarge          more bytes than the server takes: repeating is pointless
    ├── ApiError          JetStream said no, with its number: see ``code``
    └── StreamReplaced    the stream is another than before: start anew from nothing
"""


class BusError(Exception):
    """Anything that went wrong between us and the bus."""


class NotConnected(BusError):
    """The server is away, or the connection was closed."""


class NoAnswer(BusError):
    """A request was sent and nobody answered in time, or nobody listens."""


class NotPermitted(BusError):
    """The server's permissions forbid it; nothing was done, and repeating is pointless."""


class TooLarge(BusError):
    """The message exceeds the server's limit."""


class ApiError(BusError):
    """JetStream refused; ``code`` is its err_code, ``description`` its words."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} (JetStream error {code})")
        self.code = code
        self.description = description


class StreamReplaced(BusError):
    """The stream was deleted and made again: its sequences mean something else now."""
