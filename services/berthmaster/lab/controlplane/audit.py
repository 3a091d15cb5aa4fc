"""Callers of the API server with their numbers of calls, from its audit log after a mark.

The log has a line for the arrival of each call, so an answered call is always included, and another
line for the answer. The log omits the control plane's own components (see audit-policy.yaml), and
includes each call of all other clients.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

READS: Final = (b'"verb":"get"', b'"verb":"list"', b'"verb":"watch"')


@dataclass(frozen=True)
class Call:
    """One request to the API server."""

    user: str
    user_agent: str
    verb: str
    resource: str  # with group and subresource: workloads.kueue.x-k8s.io/status, pods, pods/log
    namespace: str
    name: str
    status: int  # of the answer; 0 before the answer
    uri: str


class AuditLog:
    """The log of one API server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return the present position, for `since`."""
        return self.path.stat().st_size if self.path.exists() else 0

    def calls(
        self, *, since: int = 0, user: str = "", user_agent: str = "", verb: str = ""
    ) -> list[Call]:
        """Return the calls after a mark, each once, by user, prefix of the agent, and verb."""
        return [
            call
            for call in self._read(since)
            if user in ("", call.user)
            and call.user_agent.startswith(user_agent)
            and verb in ("", call.verb)
        ]

    def count(
        self, *, since: int = 0, user: str = "", user_agent: str = "", verb: str = ""
    ) -> Counter[tuple[str, str, str]]:
        """Return the number of calls by (user, verb, resource)."""
        found = self.calls(since=since, user=user, user_agent=user_agent, verb=verb)
        return Counter((call.user, call.verb, call.resource) for call in found)

    def touched(self, namespace: str, *, since: int) -> bool:
        """Return whether a client tried to change a namespace or its content."""
        name = f"/namespaces/{namespace}".encode()
        with self.path.open("rb") as log:
            log.seek(since)
            return any(name in line and not any(verb in line for verb in READS) for line in log)

    def _read(self, since: int) -> Iterator[Call]:
        if not self.path.exists():
            return
        entries: dict[str, dict[str, Any]] = {}  # by call, the latest known entry
        with self.path.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # the line is being written
                entry = json.loads(line)
                if entry["stage"] == "RequestReceived" or entry["auditID"] in entries:
                    entries[entry["auditID"]] = entry
        for entry in entries.values():
            yield _call(entry)


def _call(entry: dict[str, Any]) -> Call:
    about = entry.get("objectRef", {})
    resource = ".".join(filter(None, (about.get("resource"), about.get("apiGroup"))))
    if subresource := about.get("subresource"):
        resource = f"{resource}/{subresource}"
    return Call(
        user=entry.get("user", {}).get("username", ""),
        user_agent=entry.get("userAgent", ""),
        verb=entry["verb"],
        resource=resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        status=entry.get("responseStatus", {}).get("code", 0),
        uri=entry["requestURI"],
    )
