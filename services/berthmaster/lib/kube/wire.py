"""The wire format of lists and watches, decoded once and only as far as needed. Pure.

One object that does not match its struct must not break its page or watch. Such a page or line is
decoded again, object by object, and each unreadable object is reported by name.
"""

from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec

from berthmaster.lib.kube.errors import BadAnswer, Status, status_error
from berthmaster.lib.kube.objects import Object

T = TypeVar("T")

# The API server accepts requests up to 3 MiB. Objects stored as protobuf are longer as JSON.
MAX_LINE_BYTES: Final = 16 * 2**20

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class Undecodable(NamedTuple):
    """An object that does not match the form of its kind."""

    namespace: str
    name: str
    resource_version: str
    why: str


class Page(NamedTuple, Generic[T]):
    """A part of a list. All pages since the last one with ``first`` are one consistent list."""

    items: tuple[T, ...]
    resource_version: str
    first: bool
    last: bool
    undecodable: tuple[Undecodable, ...] = ()
    remaining: int = 0  # objects on later pages, where the server reports them


class WatchEvent(NamedTuple, Generic[T]):
    """A change from a watch. A bookmark's object holds a resource version only."""

    type: EventType
    object: T
    resource_version: str


class UndecodableEvent(NamedTuple):
    """A change whose object does not match the form of its kind."""

    type: EventType
    object: Undecodable


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class RawPage(NamedTuple, Generic[T]):
    """A decoded page, before its position in the list is known."""

    items: tuple[T, ...]
    undecodable: tuple[Undecodable, ...]
    resource_version: str
    continue_token: str
    remaining: int


class _Envelope(msgspec.Struct, frozen=True):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _BookmarkEvent(msgspec.Struct, frozen=True):
    object: Object = Object()


class _ErrorEvent(msgspec.Struct, frozen=True):
    object: Status = msgspec.field(default_factory=Status)


class Codec(Generic[T]):
    """Decodes lists and watch lines of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        page = msgspec.defstruct(
            "_Page",
            [("metadata", _ListMeta, _ListMeta()), ("items", tuple[kind, ...] | None, ())],  # type: ignore[valid-type]
        )
        patient = msgspec.defstruct(
            "_PatientPage",
            [("metadata", _ListMeta, _ListMeta()), ("items", tuple[msgspec.Raw, ...] | None, ())],
        )
        event = msgspec.defstruct("_Event", [("type", str), ("object", kind)])
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(page)
        self._patient: msgspec.json.Decoder[Any] = msgspec.json.Decoder(patient)
        self._event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)

    def page(self, body: bytes, path: str) -> RawPage[T]:
        """Decode an answer to a list request. Raise BadAnswer if the body is no list."""
        bad: list[Undecodable] = []
        try:
            page = self._page.decode(body)
            items = page.items or ()
        except msgspec.ValidationError:
            try:
                page = self._patient.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadAnswer(f"no list ({path}): {error}") from error
            good: list[T] = []
            for raw in page.items or ():
                try:
                    good.append(self._one.decode(raw))
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    bad.append(undecodable(bytes(raw), error))
            items = tuple(good)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadAnswer(f"no list ({path}): {error}") from error
        meta: _ListMeta = page.metadata
        return RawPage(
            items, tuple(bad), meta.resource_version, meta.continue_, meta.remaining_item_count
        )

    def line(self, line: bytes, path: str) -> WatchEvent[T] | UndecodableEvent:
        """Decode one line of a watch.

        Raise BadAnswer for a malformed line, and the error described by an ERROR line. The server
        always writes the type first. Checking this prefix saves a second decoding of bookmarks
        (half empty objects) and errors (another kind).
        """
        try:
            if line.startswith(b'{"type":"BOOKMARK"'):
                return _bookmark(_BOOKMARK.decode(line).object)
            if line.startswith(b'{"type":"ERROR"'):
                raise status_error(_ERROR.decode(line).object, path)
            event = self._event.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._patiently(line, path, error)
        if event.type not in _CHANGES:
            return self._patiently(line, path, ValueError("unknown type"))
        return WatchEvent(event.type, event.object, event.object.metadata.resource_version)

    def _patiently(
        self, line: bytes, path: str, first: Exception
    ) -> WatchEvent[T] | UndecodableEvent:
        try:
            event = _ENVELOPE.decode(line)
            if event.type == "BOOKMARK":
                return _bookmark(_OBJECT.decode(event.object))
            if event.type == "ERROR":
                raise status_error(_STATUS.decode(event.object), path)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadAnswer(f"no line of a watch ({path}): {error}") from error
        if event.type not in _CHANGES:
            raise BadAnswer(f"a watch event of unknown type {event.type[:32]!r} ({path})")
        return UndecodableEvent(
            cast("EventType", event.type), undecodable(bytes(event.object), first)
        )


def _bookmark(found: Object) -> WatchEvent[Any]:
    return WatchEvent("BOOKMARK", found, found.metadata.resource_version)


class _AnyMeta(msgspec.Struct, rename="camel"):
    name: Any = None
    namespace: Any = None
    resource_version: Any = None


class _AnyObject(msgspec.Struct):
    metadata: Any = None


_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_BOOKMARK: Final = msgspec.json.Decoder(_BookmarkEvent)
_ERROR: Final = msgspec.json.Decoder(_ErrorEvent)
_OBJECT: Final = msgspec.json.Decoder(Object)
_STATUS: Final = msgspec.json.Decoder(Status)
_ANY: Final = msgspec.json.Decoder(_AnyObject)


def undecodable(raw: bytes, error: Exception) -> Undecodable:
    """Return the readable metadata of an object that does not match its kind."""
    try:
        metadata = _ANY.decode(raw).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError):
        metadata = None
    metadata = metadata if isinstance(metadata, dict) else {}

    def text(field: str) -> str:
        value = metadata.get(field)
        return value[:253] if isinstance(value, str) else ""

    return Undecodable(text("namespace"), text("name"), text("resourceVersion"), str(error)[:512])


_CODECS: Final[dict[type[Any], Codec[Any]]] = {}  # at most one for each kind in the code
_DECODERS: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {}


def codec(kind: type[T]) -> Codec[T]:
    """Return the cached codec of a kind."""
    found = _CODECS.get(kind)
    if found is None:
        found = _CODECS[kind] = Codec(kind)
    return found


def decode(body: bytes, kind: type[T], path: str) -> T:
    """Decode one object. Raise BadAnswer."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    try:
        return cast("T", decoder.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswer(f"not what was asked for ({path}): {error}") from error


class LineSplitter:
    """Splits a stream of bytes into lines of limited length."""

    def __init__(self, most_bytes: int = MAX_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by a chunk. Raise BadAnswer for a line above the limit."""
        head, newline, tail = chunk.partition(b"\n")
        if not newline:
            self._keep(chunk)
            return []
        self._keep(head)
        lines = [b"".join(self._rest)]
        self._rest, self._rest_bytes = [], 0
        if tail:
            *whole, rest = tail.split(b"\n")
            lines += whole
            if rest:
                self._keep(rest)
        return [line for line in lines if line.strip()]

    def _keep(self, part: bytes) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes > self._most_bytes:
            raise BadAnswer(f"a line of a watch is longer than {self._most_bytes} bytes")
        self._rest.append(part)
