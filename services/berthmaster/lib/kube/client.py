"""The verbs of one API server, typed: requests and answers are structs with few fields.

Every wait has a limit, and every call is counted. The client repeats a request in two cases only:
after a 429, since the server did nothing, and once with new credentials after a 401.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.errors import BadAnswer, Gone, NotFound
from berthmaster.lib.kube.objects import Object, Struct
from berthmaster.lib.kube.resources import (
    NAMESPACES,
    PODS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    Resource,
    counted_as,
)
from berthmaster.lib.kube.transport import Method, Stream, Transport
from berthmaster.lib.kube.wire import (
    LineSplitter,
    Page,
    Undecodable,
    UndecodableEvent,
    WatchEvent,
    codec,
    decode,
)
from berthmaster.lib.runtime.log import LogLike

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741
Propagation = Literal["Background", "Foreground", "Orphan"]
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML

IDENTITY: Final = "kube-system"  # namespace whose UID identifies the cluster
RESTARTS: Final = 3  # of a list whose continue token expired between two pages
WATCH_GRACE_S: Final = 15.0  # the server ends a watch, the client ends the stream this much later
SLICE_S: Final = 0.005  # longest time slice of a busy watch on the event loop


class Client:
    """A client of one API server."""

    def __init__(self, transport: Transport, access: Access, log: LogLike) -> None:
        """Use ``open``."""
        self._transport = transport
        self.access = access
        self.log = log
        self.calls: Counter[tuple[str, str]] = Counter()  # calls made, by verb and plural

    @classmethod
    async def open(
        cls,
        access: Access,
        *,
        user_agent: str,
        log: LogLike,
        timeout_s: float = 10.0,
        max_in_flight: int = 64,
    ) -> "Client":
        """Return a client that has sent nothing yet. Raise BadConfig."""
        transport = Transport(
            access, user_agent=user_agent, timeout_s=timeout_s, max_in_flight=max_in_flight
        )
        await transport.open()
        return cls(transport, access, log)

    async def close(self) -> None:
        """Close every connection. Open watches end with Unreachable."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ read

    async def get(self, path: str, kind: type[T], *, timeout_s: float | None = None) -> T:
        """Return one object. Raise KubernetesError."""
        return decode(await self._call("get", "GET", path, timeout_s=timeout_s), kind, path)

    async def list_pages(
        self,
        resource: Resource,
        kind: type[O],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Page[O], None]:
        """Yield all objects, page by page. Raise KubernetesError.

        When the continue token expires between two pages (410), the list starts again. Drop all
        earlier pages at a page with ``first``.
        """
        path = resource.path(namespace=namespace)
        fixed = _selectors(label_selector, field_selector)
        token = ""
        restarts = 0
        while True:
            # The last attempt requests all objects in one page, since one page cannot expire.
            wanted = {"limit": str(limit)} if limit and restarts < RESTARTS else {}
            params = {**fixed, **wanted, **({"continue": token} if token else {})}
            try:
                body = await self._call("list", "GET", path, params=params, timeout_s=timeout_s)
            except Gone:
                if not token or restarts >= RESTARTS:
                    raise
                restarts += 1
                token = ""
                continue
            raw = codec(kind).page(body, path)
            first, token = not token, raw.continue_token
            yield Page(
                items=raw.items,
                resource_version=raw.resource_version,
                first=first,
                last=not token,
                undecodable=raw.undecodable,
                remaining=raw.remaining,
            )
            if not token:
                return

    async def watch(
        self,
        resource: Resource,
        kind: type[O],
        *,
        namespace: str = "",
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: float = 300,
        on_undecodable: Callable[[UndecodableEvent], None] | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[WatchEvent[O], None]:
        """Yield changes after ``resource_version``, until the server ends the watch.

        Raise Gone when the server no longer has that version, and other KubernetesError. An object
        that does not match ``kind`` goes to ``on_undecodable``. Without ``on_undecodable``, raise
        BadAnswer. ``on_open`` is called when the server has accepted the watch.

        Wrap the generator in ``contextlib.aclosing``, so that leaving the block closes the
        connection.
        """
        path = resource.path(namespace=namespace)
        params = {
            **_selectors(label_selector, field_selector),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, int(timeout_s))),
        }
        self.calls["watch", counted_as(path)] += 1
        decoder = codec(kind)
        splitter = LineSplitter()
        now = asyncio.get_running_loop().time
        stream = await self._transport.stream(
            path, params=params, timeout_s=timeout_s + WATCH_GRACE_S
        )
        if on_open is not None:
            on_open()
        try:
            while piece := await stream.read():
                slice_ends_s = now() + SLICE_S
                for line in splitter.feed(piece):
                    event = decoder.line(line, path)
                    if isinstance(event, WatchEvent):
                        yield event
                    elif on_undecodable is not None:
                        on_undecodable(event)
                    else:
                        raise BadAnswer(f"{_error_text(event.object)} ({path})")
                    if now() > slice_ends_s:
                        await asyncio.sleep(0)  # let other tasks of the event loop run
                        slice_ends_s = now() + SLICE_S
        finally:
            stream.close()

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        since: str = "",
        tail: int | None = None,
        follow: bool = False,
        timeout_s: float = 3600.0,
    ) -> Stream:
        """Return the log of a pod's container as a stream, each line with its time.

        The caller closes the stream. ``since`` is RFC 3339 in whole seconds. Raise KubernetesError.
        """
        path = PODS.path(namespace=namespace, name=pod, subresource="log")
        params = {"timestamps": "true"}
        wanted = {"container": container, "sinceTime": since, "follow": "true" if follow else ""}
        params |= {name: value for name, value in wanted.items() if value}
        if tail is not None:
            params["tailLines"] = str(tail)
        self.calls["log", counted_as(path)] += 1
        return await self._transport.stream(path, params=params, timeout_s=timeout_s)

    # ------------------------------------------------------------ write

    async def create(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        field_manager: str = "",
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        """Create an object in the collection at ``path``. Raise AlreadyExists, KubernetesError.

        ``dry_run`` only returns the object that the server would store, after defaults and
        admission.
        """
        answer = await self._call(
            "create",
            "POST",
            path,
            params=(_manager(field_manager) or {}) | ({"dryRun": "All"} if dry_run else {}),
            body=body,
            timeout_s=timeout_s,
        )
        return decode(answer, kind, path)

    async def merge_patch(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        resource_version: str = "",
        field_manager: str = "",
        timeout_s: float | None = None,
    ) -> T:
        """Change the given fields, lists as a whole. Raise Conflict, KubernetesError.

        With a resource version, raise Conflict if another writer has changed the object since.
        """
        if resource_version:
            body = _with_version(body, resource_version)
        return await self._patch(path, body, kind, MERGE_PATCH, _manager(field_manager), timeout_s)

    async def apply(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        field_manager: str,
        force: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        """Apply fields server-side. Raise Conflict and KubernetesError.

        Another manager of a field causes a Conflict. The field manager owns the given fields from
        now on, and gives up fields that are left out.
        """
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self._patch(path, body, kind, APPLY_PATCH, params, timeout_s)

    async def delete(
        self,
        path: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        timeout_s: float | None = None,
    ) -> None:
        """Delete one object. A missing object is success.

        Raise Conflict if the object has another ``uid`` or ``resource_version``, and
        KubernetesError.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        wanted = {name: value for name, value in conditions.items() if value}
        body: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        if wanted:
            body["preconditions"] = wanted
        try:
            await self._call("delete", "DELETE", path, body=body, timeout_s=timeout_s)
        except NotFound:
            pass

    # ------------------------------------------------------------ access and discovery

    async def can(
        self,
        verb: str,
        resource: Resource,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
    ) -> bool:
        """Return whether these credentials allow the verb. No namespace = in all namespaces."""
        wanted = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        body = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.group_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {key: value for key, value in wanted.items() if value}},
        }
        review = await self.create(SELF_SUBJECT_ACCESS_REVIEWS.path(), body, _Review)
        return review.status.allowed

    async def served(self, group_version: str) -> frozenset[str]:
        """Return the plurals served in ``v1`` or ``batch/v1``, empty if the group is missing."""
        path = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        try:
            found = await self.get(path, _ResourceList)
        except NotFound:
            return frozenset()
        return frozenset(one.name for one in found.resources or () if "/" not in one.name)

    async def served_kinds(self, group_version: str) -> dict[str, tuple[str, bool]]:
        """Return kind -> (plural, whether namespaced) for ``v1`` or ``batch/v1``."""
        path = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        try:
            found = await self.get(path, _ResourceList)
        except NotFound:
            return {}
        return {
            one.kind: (one.name, one.namespaced)
            for one in found.resources or ()
            if "/" not in one.name
        }

    async def version(self) -> str:
        """Return the server's version, such as ``v1.36.3``."""
        return (await self.get("/version", _Version)).git_version

    async def uid(self) -> str:
        """Return the UID of the namespace kube-system. Raise KubernetesError.

        The UID identifies the cluster: every cluster has this namespace and keeps the UID, even
        when address and contexts change.
        """
        path = NAMESPACES.path(name=IDENTITY)
        found = (await self.get(path, Object)).metadata.uid
        if not found:
            raise BadAnswer(f"namespace {IDENTITY} has no uid ({path})")
        return found

    # ------------------------------------------------------------ shared

    async def _patch(
        self,
        path: str,
        body: object,
        kind: type[T],
        form: str,
        params: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> T:
        answer = await self._call(
            "patch",
            "PATCH",
            path,
            params=params,
            body=body,
            content_type=form,
            timeout_s=timeout_s,
        )
        return decode(answer, kind, path)

    async def _call(
        self,
        verb: str,
        method: Method,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> bytes:
        self.calls[verb, counted_as(path)] += 1
        return await self._transport.send(
            method,
            path,
            params=params,
            body=msgspec.to_builtins(body),  # the library encodes only plain values as JSON
            content_type=content_type,
            timeout_s=timeout_s,
        )


class _ReviewStatus(Struct, frozen=True):
    allowed: bool = False


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


class _ApiResource(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _ResourceList(Struct, frozen=True):
    resources: tuple[_ApiResource, ...] | None = ()


class _Version(Struct, frozen=True):
    git_version: str = ""


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    wanted = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in wanted.items() if value}


def _manager(field_manager: str) -> dict[str, str] | None:
    return {"fieldManager": field_manager} if field_manager else None


def _with_version(body: object, resource_version: str) -> dict[str, Any]:
    plain = msgspec.to_builtins(body)
    if not isinstance(plain, dict):
        raise TypeError(f"a merge patch is an object, not {type(plain).__name__}")
    metadata = plain.get("metadata") or {}
    return {**plain, "metadata": {**metadata, "resourceVersion": resource_version}}


def _error_text(bad: Undecodable) -> str:
    where = f"{bad.namespace}/{bad.name}" if bad.namespace else bad.name
    return f"{where or 'an object without a name'}: {bad.why}"
