"""The last valid request of a Placement, stored beside its decisions. Pure.

After a wrong edit, the evaluator decides by the previous request, even if the evaluator starts
after the edit. Kubernetes stores no earlier generation, so the first page carries the request.
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from berthmaster.hub.placement.core.objects import (
    HYSTERESIS,
    REQUEST,
    UNKNOWN_SCORES,
    Misconfigured,
    Placement,
    PlacementDecision,
    PlacementSpec,
)
from berthmaster.hub.placement.core.scheduling.plugin import Verdicts
from berthmaster.hub.placement.core.scheduling.request import Request, read
from berthmaster.lib.kube.objects import Metadata

MAX_CHARS: Final = 3900  # longer annotations are not mirrored
MAX_BYTES: Final = 256 * 1024  # limit of the unpacked size
PACKED: Final = "z:"
SETTINGS: Final[tuple[str, ...]] = (
    UNKNOWN_SCORES,
    HYSTERESIS,
)  # annotations that are part of a request


class Good(NamedTuple):
    """A request and its generation."""

    request: Request
    generation: int
    text: str  # the stored text; "" = too long to store
    verdicts: Verdicts  # results of the request's expressions


class _Kept(msgspec.Struct, frozen=True):
    generation: int
    spec: PlacementSpec
    annotations: dict[str, str] = {}


def good(placement: Placement, request: Request, verdicts: Verdicts) -> Good:
    """Return a Placement's request that was read and led to an outcome."""
    meta = placement.metadata
    told: dict[str, str] = {
        name: meta.annotations[name] for name in SETTINGS if name in meta.annotations
    }
    data = msgspec.json.encode(_Kept(meta.generation, placement.spec, told))
    text = data.decode()
    if len(text) > MAX_CHARS:
        text = PACKED + base64.b64encode(zlib.compress(data, 9)).decode()
    return Good(request, meta.generation, text if len(text) <= MAX_CHARS else "", verdicts)


def kept(placement: Placement, pages: Mapping[str, PlacementDecision]) -> Good | None:
    """Return the request stored in a Placement's pages, or None if missing or invalid."""
    text = next(
        (
            page.metadata.annotations[REQUEST]
            for page in pages.values()
            if REQUEST in page.metadata.annotations
            and any(one.uid == placement.metadata.uid for one in page.metadata.owner_references)
        ),
        "",
    )
    if not text:
        return None
    try:
        found = msgspec.json.decode(_unpacked(text), type=_Kept)
        meta = Metadata(
            name=placement.metadata.name,
            namespace=placement.metadata.namespace,
            annotations=found.annotations,
        )
        request = read(replace(placement, metadata=meta, spec=found.spec))
    except (msgspec.MsgspecError, ValueError, zlib.error, Misconfigured):
        return None  # another client has overwritten the annotation
    return Good(request, found.generation, text, Verdicts())


def _unpacked(text: str) -> bytes:
    if not text.startswith(PACKED):
        return text.encode()
    data = base64.b64decode(text.removeprefix(PACKED), validate=True)
    return zlib.decompressobj().decompress(data, MAX_BYTES)
