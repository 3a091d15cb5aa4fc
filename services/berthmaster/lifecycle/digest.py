"""Whether two requests with one id are the same request."""

import hashlib

import msgspec

from berthmaster.messages.workload import JobRequest

_ENCODER = msgspec.json.Encoder(order="sorted")


def request_digest(request: JobRequest) -> str:
    """A short name of the request's content: key order and omitted defaults do not count."""
    return hashlib.blake2b(_ENCODER.encode(request), digest_size=16).hexdigest()
