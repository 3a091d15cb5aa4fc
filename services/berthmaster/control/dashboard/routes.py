"""The page's routes: the answer to each request of a browser.

All data is under /api/, and each answer depends on the user. Data without access is "not found",
like data that does not exist. Requests with a change must come from the page itself: a browser
reports the origin of a request, and other pages are refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, get_args
from urllib.parse import unquote

import msgspec
import orjson
from aiohttp import web

from berthmaster.control.dashboard.asking import Asker, NotAnswered
from berthmaster.control.dashboard.core.access import Doorkeeper, Person, Refused, Shown
from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.core.details import job_document, may_see_nodes, node_document
from berthmaster.control.dashboard.core.jobs import WAITING, Query, Sort, row_of
from berthmaster.control.dashboard.hands import ACTS, Forbidden, Hands
from berthmaster.control.dashboard.static_files import StaticFile
from berthmaster.control.dashboard.streaming import Streams
from berthmaster.control.dashboard.web import HEADERS, MAX_BODY_BYTES
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.visible_text import dumps

COOKIE: Final = "berth_token"
BODY_LIMIT_S: Final = 10.0
MOST_ROWS: Final = 500
ASKED_ROWS: Final = 60  # rows of a list with a query for the reason of the wait
TOKEN_DAYS: Final = 30
STATES: Final = frozenset({*map(str, State), WAITING, "live", "ended"})
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Answer = web.StreamResponse


class Failed(Exception):
    def __init__(
        self, status: HTTPStatus, why: str, *, field: str = "", again_s: float = 0
    ) -> None:
        super().__init__(why)
        self.status = status
        self.field = field
        self.again_s = again_s


class Routes:
    """Answers requests. ``names``: accepted host names of the page, None for any."""

    def __init__(
        self,
        known: Dashboard,
        streams: Streams,
        files: Mapping[str, StaticFile],
        *,
        asker: Callable[[], Asker | None],
        hands: Hands,
        doorkeeper: Callable[[], Doorkeeper],
        names: frozenset[str] | None,
        identity_header: str,
        now: Callable[[], float],
        log: LogLike,
    ) -> None:
        self._known = known
        self._streams = streams
        self._files = files
        self._asker = asker
        self._hands = hands
        self._doorkeeper = doorkeeper
        self._names = names
        self._identity_header = identity_header
        self._now = now
        self._log = log
        self._gets: dict[str, Callable[[web.BaseRequest, Person, list[str]], Awaitable[Answer]]] = {
            "me": self._me,
            "stream": self._stream,
            "history": self._history,
            "jobs": self._jobs,
            "job": self._job,
            "node": self._node,
        }
        # Verbs of the usage service: over all tenants for users with all rights, else over one
        # tenant.
        self._usage = ("report", "trends", "profile")
        self._posts: dict[str, Callable[[web.BaseRequest, Person], Awaitable[Answer]]] = {
            "try": self._try,
            "act": self._act,
        }

    async def answer(self, request: web.BaseRequest) -> Answer:
        try:
            self._check_name(request)
            return await self._route(request)
        except Failed as failed:
            body = {"error": str(failed), "field": failed.field}
            answer = _json(body, status=failed.status)
            if failed.again_s:
                answer.headers["Retry-After"] = str(max(1, round(failed.again_s)))
            return answer
        except (ConnectionError, asyncio.CancelledError):
            raise
        except web.HTTPException as error:
            return _json({"error": error.reason}, status=HTTPStatus(error.status))
        except Exception as error:  # noqa: BLE001 # one request ends, the page goes on
            self._log.error("request failed", error=error, path=request.path[:200])
            return _json({"error": "the page failed"}, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _route(self, request: web.BaseRequest) -> Answer:
        parts = [unquote(part) for part in request.rel_url.raw_path.split("/")[1:]]
        if parts[0] != "api":
            return self._file(request, "/".join(parts) or "index.html")
        verb = parts[1] if len(parts) > 1 else ""
        if request.method == "POST":
            self._check_origin(request)
            if verb == "login":
                return await self._login(request)
            if verb == "logout":
                return self._logout()
            if verb in self._usage and len(parts) == 2:
                return await self._of_usage(request, self._person(request), verb)
            if verb in self._posts and len(parts) == 2:
                return await self._posts[verb](request, self._person(request))
        elif request.method in ("GET", "HEAD"):
            if verb in self._gets:
                return await self._gets[verb](request, self._person(request), parts[2:])
        else:
            raise Failed(HTTPStatus.METHOD_NOT_ALLOWED, "GET or POST")
        raise Failed(HTTPStatus.NOT_FOUND, "there is no such page")

    # User and origin

    def _check_name(self, request: web.BaseRequest) -> None:
        """Refuse requests for other host names, against DNS rebinding."""
        if self._names is None:
            return
        host = request.headers.get("Host", "")
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in self._names:
            raise Failed(HTTPStatus.MISDIRECTED_REQUEST, "this page is not called by that name")

    @staticmethod
    def _check_origin(request: web.BaseRequest) -> None:
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        origin = request.headers.get("Origin", "")
        ours = not origin or origin.partition("://")[2] == request.headers.get("Host", "")
        if site not in ("same-origin", "none") or not ours:
            raise Failed(HTTPStatus.FORBIDDEN, "only the page itself may ask for that")
        if request.headers.get("Content-Type", "").partition(";")[0] != "application/json":
            raise Failed(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "application/json")

    def shown(self, request: web.BaseRequest) -> Shown:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        address = str(peer[0]) if peer else ""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = request.cookies.get(COOKIE, "")
        forwarded = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        identity = request.headers.get(self._identity_header, "")
        return Shown(address, token.strip(), identity, forwarded)

    def _person(self, request: web.BaseRequest) -> Person:
        return self._let_in(self.shown(request))

    def _let_in(self, shown: Shown) -> Person:
        found = self._doorkeeper().who(shown, self._now())
        if isinstance(found, Refused):
            status = HTTPStatus.TOO_MANY_REQUESTS if found.again_s else HTTPStatus.UNAUTHORIZED
            raise Failed(status, found.why, again_s=found.again_s)
        return found

    async def _login(self, request: web.BaseRequest) -> Answer:
        body = _parsed(await _body(request))
        token = body.get("token")
        if not isinstance(token, str) or not token.strip() or len(token) > 4096:
            raise Failed(HTTPStatus.BAD_REQUEST, "a token", field="token")
        shown = self.shown(request)._replace(token=token.strip())
        person = self._let_in(shown)
        answer = _json(self._about(person))
        answer.set_cookie(
            COOKIE,
            token.strip(),
            max_age=TOKEN_DAYS * 86_400,
            httponly=True,
            samesite="Strict",
            secure=request.headers.get("X-Forwarded-Proto") == "https",
            path="/",
        )
        return answer

    @staticmethod
    def _logout() -> Answer:
        answer = _json({})
        answer.del_cookie(COOKIE, path="/")
        return answer

    # Files

    def _file(self, request: web.BaseRequest, name: str) -> Answer:
        found = self._files.get(name)
        if found is None or request.method not in ("GET", "HEAD"):
            raise Failed(HTTPStatus.NOT_FOUND, "there is no such page")
        headers = HEADERS | {
            "Cache-Control": "no-cache",
            "ETag": found.tag,
            "Vary": "Accept-Encoding",
            "Content-Type": found.kind,
        }
        if found.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=found.packed, headers=headers | {"Content-Encoding": "gzip"})
        return web.Response(body=found.plain, headers=headers)

    # Answers

    def _about(self, person: Person) -> dict[str, Any]:
        return {
            "name": person.name,
            "role": person.role,
            "tenants": sorted(person.tenants),
            "may": self._hands.allowed(person),
            "now_s": self._now(),
        }

    async def _me(self, _: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        return _json(self._about(person))

    async def _history(self, _: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        return _json(self._known.pulse.columns())

    async def _stream(self, request: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        shown = self.shown(request)

        def still() -> bool:
            found = self._doorkeeper().who(shown, self._now())
            return isinstance(found, Person) and found.scope == person.scope

        return await self._streams.serve(request, person.scope, still)

    async def _jobs(self, request: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        query = _query(request.query)
        found = self._known.jobs.select(query, person.scope)
        waiting = [(work.tenant, work.id) for work in found.jobs if work.state is State.QUEUED][
            :ASKED_ROWS
        ]
        asker = self._asker()
        reasons = await asker.reasons(waiting) if asker is not None and waiting else {}
        rows = []
        for work in found.jobs:
            row = row_of(work)
            if (reason := reasons.get((work.tenant, work.id))) is not None:
                row["why"] = msgspec.to_builtins(reason)
            rows.append(row)
        body = {"rows": rows, "total": found.total, "changes": self._known.jobs.changes}
        return _json(body)

    async def _job(self, _: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        if len(rest) != 2 or not person.scope.sees_tenant(rest[0]):
            raise Failed(HTTPStatus.NOT_FOUND, "there is no such job, or it is not yours")
        tenant, name = rest
        work = self._known.jobs.find(tenant, name)
        got, why = await asyncio.gather(
            self._asked(tenant, "get", {"id": name, "story": True}),
            self._asked(tenant, "why", {"id": name}),
        )
        return _json(
            {
                "page": job_document(self._known, work) if work is not None else None,
                "get": got,
                "why": why,
            }
        )

    async def _asked(self, tenant: str, verb: str, body: Any) -> Any:
        """Return a reply as a part of an answer, or an error object without a reply."""
        try:
            return orjson.Fragment(await self._ask(tenant, verb, body))
        except (NotAnswered, subjects.SubjectError) as error:
            return {"type": "error", "error": str(error)}

    async def _ask(self, tenant: str, verb: str, body: Any) -> bytes:
        asker = self._asker()
        if asker is None:
            raise NotAnswered("the page has no connection to the bus")
        return await asker.ask(tenant, verb, body)

    async def _node(self, _: web.BaseRequest, person: Person, rest: list[str]) -> Answer:
        found = None
        if len(rest) == 2 and may_see_nodes(person.scope):
            found = node_document(self._known, rest[0], rest[1])
        if found is None:
            raise Failed(HTTPStatus.NOT_FOUND, "there is no such node, or it is not yours to see")
        return _json(found)

    async def _try(self, request: web.BaseRequest, person: Person) -> Answer:
        body = _parsed(await _body(request))
        tenant, wanted = body.get("tenant"), body.get("request")
        if not isinstance(tenant, str) or not person.scope.sees_tenant(tenant):
            raise Failed(HTTPStatus.FORBIDDEN, "a tenant whose jobs you may see", field="tenant")
        if not isinstance(wanted, dict):
            raise Failed(HTTPStatus.BAD_REQUEST, "a request, as an object", field="request")
        dry_run, whatif = await asyncio.gather(
            self._asked(tenant, "dry_run", wanted),
            self._asked(tenant, "whatif", {"submit": wanted}),
        )
        return _json({"dry_run": dry_run, "whatif": whatif})

    async def _of_usage(self, request: web.BaseRequest, person: Person, verb: str) -> Answer:
        body = _parsed(await _body(request))
        tenant = body.get("tenant", "")
        asker = self._asker()
        try:
            if asker is None:
                raise NotAnswered("the page has no connection to the bus")
            if person.scope.everything:
                return _raw(await asker.ask_at(subjects.operator(verb), body))
            body.pop("tenant", None)
            if not isinstance(tenant, str) or not person.scope.sees_tenant(tenant):
                raise Failed(
                    HTTPStatus.FORBIDDEN, "a tenant whose jobs you may see", field="tenant"
                )
            return _raw(await asker.ask(tenant, verb, body))
        except NotAnswered as error:
            raise Failed(HTTPStatus.GATEWAY_TIMEOUT, str(error)) from error
        except subjects.SubjectError as error:
            raise Failed(HTTPStatus.BAD_REQUEST, str(error), field="tenant") from error

    async def _act(self, request: web.BaseRequest, person: Person) -> Answer:
        try:
            act = ACTS.decode(await _body(request))
            reply = await self._hands.do(person, act)
        except Forbidden as error:
            raise Failed(HTTPStatus.FORBIDDEN, str(error)) from error
        except NotAnswered as error:
            raise Failed(HTTPStatus.GATEWAY_TIMEOUT, str(error)) from error
        except (subjects.SubjectError, *UNREADABLE) as error:
            raise Failed(HTTPStatus.BAD_REQUEST, str(error)) from error
        return _raw(reply)


def _query(given: Mapping[str, str]) -> Query:
    """Return the query of a list. Raises Failed."""
    states = frozenset(filter(None, given.get("state", "").split(",")))
    if unknown := sorted(states - STATES):
        right = f"some of {', '.join(sorted(STATES))}, not {unknown[0][:40]!r}"
        raise Failed(HTTPStatus.BAD_REQUEST, right, field="state")
    try:
        sort: Sort = msgspec.convert(given.get("sort", ""), Sort)
    except msgspec.ValidationError:
        right = f"one of {', '.join(filter(None, get_args(Sort)))}"
        raise Failed(HTTPStatus.BAD_REQUEST, right, field="sort") from None
    return Query(
        states,
        given.get("tenant", ""),
        given.get("queue", ""),
        given.get("cluster", ""),
        given.get("q", "")[:200],
        sort,
        _number(given, "limit", 100, MOST_ROWS),
        _number(given, "offset", 0, 1_000_000),
    )


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9 or int(text) > most:
        raise Failed(HTTPStatus.BAD_REQUEST, f"a whole number of at most {most}", field=name)
    return int(text)


async def _body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise Failed(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BODY_BYTES} bytes")
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for chunk in request.content.iter_any():
                found += chunk
                if len(found) > MAX_BODY_BYTES:
                    right = f"at most {MAX_BODY_BYTES} bytes"
                    raise Failed(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, right)
    except TimeoutError:
        raise Failed(HTTPStatus.REQUEST_TIMEOUT, "all of it, sooner") from None
    return bytes(found)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Failed(HTTPStatus.BAD_REQUEST, f"JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failed(HTTPStatus.BAD_REQUEST, "a JSON object")
    return value


def _json(value: Any, *, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return _raw(dumps(value), status=status)


def _raw(data: bytes, *, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    headers = HEADERS | {"Cache-Control": "no-store", "Content-Type": "application/json"}
    answer = web.Response(body=data, status=status, headers=headers)
    if len(data) > 1_000:
        answer.enable_compression()
    return answer
