"""What can go wrong between us and an API server, named by what the caller can do next.

::

    KubernetesError
    ├── ApiError             the server said no, with status and reason
    │   ├── NotFound         404: it is not there, or its kind is not served
    │   ├── AlreadyExists    409: a create came second; read what is there
    │   ├── Conflict         409: somebody else wrote first; read again and decide again
    │   ├── Gone             410: this resource version or continue token is history; list anew
    │   ├── Invalid          422: the object breaks a rule; repeating is pointless
    │   ├── Unauthorized     401: the credentials are unknown or expired; a person must
    │   ├── Forbidden        403: this user may not; a person must
    │   ├── TooManyRequests  429: nothing was done; wait ``retry_after_s`` and repeat
    │   └── ServerError      5xx: it may have been done; read back or repeat safely
    ├── Unreachable          no connection, no TLS, no such name; or cut off before the answer
    ├── TimedOut             no answer within the limit; it may have been done
    ├── BadAnswer            an answer that is not what the API promises, or far too large
    └── BadConfig            a kubeconfig cannot be used: names file, context and field

No text here ever holds a credential: paths come without their query, configs without values.
"""

from typing import Final

import msgspec

MAX_MESSAGE_CHARS: Final = 1024


class KubernetesError(Exception):
    """Anything that went wrong between us and an API server."""


class ApiError(KubernetesError):
    """The API server answered, and it was a refusal."""

    def __init__(
        self, status: int, reason: str, message: str, path: str, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(f"{message or reason or 'refused'} ({status} {reason}, {path})")
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path
        self.retry_after_s = retry_after_s  # 0 = the server did not say


class NotFound(ApiError):
    """404: the object is not there, or its kind is not served."""


class AlreadyExists(ApiError):
    """409: an object of this name is there already."""


class Conflict(ApiError):
    """409: a precondition did not hold, mostly the resource version."""


class Gone(ApiError):
    """410: the resource version or the continue token is too old."""


class Invalid(ApiError):
    """422: the object breaks a rule of its kind."""


class Unauthorized(ApiError):
    """401: the API server does not know these credentials."""


class Forbidden(ApiError):
    """403: these credentials do not allow it."""


class TooManyRequests(ApiError):
    """429: the API server is busy and did nothing."""


class ServerError(ApiError):
    """5xx: the API server, or what stands before it, failed."""


class Unreachable(KubernetesError):
    """No connection to the API server, or it broke before the answer was whole."""


class TimedOut(KubernetesError):
    """No whole answer within the time limit."""


class BadAnswer(KubernetesError):
    """An answer that is not what the API promises."""


class BadConfig(KubernetesError):
    """A kubeconfig, or the environment of a pod, that cannot be used."""

    def __init__(self, source: str, context: str, field: str, problem: str) -> None:
        where = f"{source}, context {context!r}" if context else source
        super().__init__(f"{where}: {field}: {problem}" if field else f"{where}: {problem}")
        self.source = source
        self.context = context
        self.field = field
        self.problem = problem


# What is no answer of a server that could be worked with: away, ill, or it does not know us.
NO_ANSWER: Final = (Unreachable, TimedOut, BadAnswer, ServerError, Unauthorized)


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, rename="camel"):
    """The API's own form of a refusal; everything may be missing."""

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
    """The error for an answer that is no success; the body may be anything."""
    try:
        status = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # A proxy's page, not the API server's words.
        status = Status(message=body[:MAX_MESSAGE_CHARS].decode(errors="replace").strip())
    return status_error(status, path, http_status=http_status, retry_after_s=retry_after_s)


def status_error(
    status: Status, path: str, *, http_status: int = 0, retry_after_s: float = 0.0
) -> ApiError:
    """The error that a Status object stands for."""
    code = http_status or status.code or 500
    reason = status.reason or ""
    if not retry_after_s and status.details and status.details.retry_after_seconds:
        retry_after_s = float(status.details.retry_after_seconds)
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(code)
    if kind is None:
        kind = ServerError if code >= 500 else ApiError
    return kind(code, reason, (status.message or "")[:MAX_MESSAGE_CHARS], path, retry_after_s)
