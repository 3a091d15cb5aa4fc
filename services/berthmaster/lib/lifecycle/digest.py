"""Whether two requests with one id are the same request."""

import functools
import hashlib
from typing import Final

import msgspec

from berthmaster.lib.messages.workload import JobRequest

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def request_digest(request: JobRequest) -> str:
    """A short name of the request's content: equal requests have one, however they were written.

    Fields that have their default are left out, so that a field added later changes no digest. Of a
    request that a runtime was put into, the one of what had been sent: that is sent again.
    """
    if request.runtime_used is not None:
        return request.runtime_used.digest
    return content_digest(request)


def content_digest(message: msgspec.Struct) -> str:
    """A short name of what a message says."""
    content = _ENCODER.encode(_without_defaults(message))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _without_defaults(value: object) -> object:
    """Plain values. Encoding would omit a default only where it is the very same object."""
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


_PLAIN: Final = frozenset({str, int, float, bool})  # most fields: nothing in them to look at


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """(name on the wire, default); kept, since finding out takes 100 us a struct."""
    return tuple((field.encode_name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
