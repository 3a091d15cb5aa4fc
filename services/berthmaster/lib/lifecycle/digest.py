"""Digests of requests: two requests with one id and one digest are the same request."""

import functools
import hashlib
from typing import Final

import msgspec

from berthmaster.lib.messages.workload import JobRequest

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def request_digest(request: JobRequest) -> str:
    """Return a hash of the request's content, equal for equal requests in any spelling.

    Fields with their default are left out, so a new field changes no digest. For a request with a
    resolved runtime, return the digest of the original, because clients repeat the original.
    """
    if request.runtime_used is not None:
        return request.runtime_used.digest
    return content_digest(request)


def content_digest(message: msgspec.Struct) -> str:
    """Return a hash of a message's content."""
    content = _ENCODER.encode(_without_defaults(message))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _without_defaults(value: object) -> object:
    """Return plain values without defaults. The encoder omits only a default that is the same
    object.
    """
    if isinstance(value, tuple):
        return [_without_defaults(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_defaults(item) for name, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    plain: dict[str, object] = {}
    fields = _fields(type(value))
    for (name, default), held in zip(fields, msgspec.structs.astuple(value), strict=True):
        if held != default:
            plain[name] = held if type(held) in _PLAIN else _without_defaults(held)
    return plain


# Types of most fields, which contain nothing to convert
_PLAIN: Final = frozenset({str, int, float, bool})


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """Return (name on the wire, default) of each field. Cached, since msgspec takes 100 us a
    struct.
    """
    return tuple((field.encode_name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
