"""Failures of requests to an API server, named by the caller's next step.

::

    KubernetesError
    ├── ApiError             the server refused, with status and reason
    │   ├── NotFound         404: the object is missing, or its kind is not served
    │   ├── AlreadyExists    409: the name is taken: read the object
    │   ├── Conflict         409: another writer was first: read and decide again
    │   ├── Gone             410: resource version or continue token expired: list again
    │   ├── Invalid          422: the object violates a rule: do not retry
    │   ├── Unauthorized     401: unknown or expired credentials: an operator must act
    │   ├── Forbidden        403: rights are missing: an operator must act
    │   ├── TooManyRequests  429: nothing was done: retry after ``retry_after_s``
    │   └── ServerError      5xx: the write may have happened: read back or retry safely
    ├── Unreachable          no connection, TLS or DNS name, or cut off before the answer
    ├── TimedOut             no answer in time: the write may have happened
    ├── BadAnswer            an answer that the API does not define, or far too large
    └── BadConfig            an unusable kubeconfig, with file, context and field

No message holds a credential: paths have no query, configs no values.
"""

from typing import Final

import msgspec

MAX_MESSAGE_CHARS: Final = 1024


class KubernetesError(Exception):
    """Any failure of a request to an API server, or of the access to one."""


class ApiError(KubernetesError):
    """A refusal by the API server."""

    def __init__(
        self, status: int, reason: str, message: str, path: str, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(f"{message or reason or 'refused'} ({status} {reason}, {path})")
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path
        self.retry_after_s = retry_after_s  # 0 = not stated by the server


class NotFound(ApiError):
    """404: the object is missing, or its kind is not served."""


class AlreadyExists(ApiError):
    """409: an object with this name exists."""


class Conflict(ApiError):
    """409: a precondition failed, mostly the resource version."""


class Gone(ApiError):
    """410: the resource version or the continue token is too old."""


class Invalid(ApiError):
    """422: the object violates a rule of its kind."""


class Unauthorized(ApiError):
    """401: the API server does not know these credentials."""


class Forbidden(ApiError):
    """403: these credentials do not allow the request."""


class TooManyRequests(ApiError):
    """429: the API server is busy and did nothing."""


class ServerError(ApiError):
    """5xx: the API server, or a proxy in front, failed."""


class Unreachable(KubernetesError):
    """No connection to the API server, or the connection broke before the answer was complete."""


class TimedOut(KubernetesError):
    """No complete answer within the time limit."""


class BadAnswer(KubernetesError):
    """An answer that the API does not define."""


class BadConfig(KubernetesError):
    """A kubeconfig, or the environment of a pod, that cannot be used."""

    def __init__(self, source: str, context: str, field: str, problem: str) -> None:
        where = f"{source}, context {context!r}" if context else source
        super().__init__(f"{where}: {field}: {problem}" if field else f"{where}: {problem}")
        self.source = source
        self.context = context
        self.field = field
        self.problem = problem


# The server is unreachable, broken, or does not accept the credentials.
NO_ANSWER: Final = (Unreachable, TimedOut, BadAnswer, ServerError, Unauthorized)


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, rename="camel"):
    """The API's own form of a refusal. Every field may be missing."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(Status)
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_BY_REASON: Final[dict[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "Gone": Gone,
}


def refusal(http_status: int, body: bytes, path: str, retry_after_s: float = 0.0) -> ApiError:
    """Return the error for an answer that is not a success. The body may be anything."""
    try:
        status = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # The body may be a proxy's page.
        status = Status(message=body[:MAX_MESSAGE_CHARS].decode(errors="replace").strip())
    return status_error(status, path, http_status=http_status, retry_after_s=retry_after_s)


def status_error(
    status: Status, path: str, *, http_status: int = 0, retry_after_s: float = 0.0
) -> ApiError:
    """Return the error that a Status object describes."""
    code = http_status or status.code or 500
    reason = status.reason or ""
    if not retry_after_s and status.details and status.details.retry_after_seconds:
        retry_after_s = float(status.details.retry_after_seconds)
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(code)
    if kind is None:
        kind = ServerError if code >= 500 else ApiError
    return kind(code, reason, (status.message or "")[:MAX_MESSAGE_CHARS], path, retry_after_s)
