"""Who called the API server how often: its own audit log, read from a mark on.

A line is written when a call arrives, so whoever got an answer is in it, and another when it has
been answered. The control plane's own components are left out (see audit-policy.yaml), everybody
else is there with each call.
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
    resource: str  # with its group and subresource: workloads.kueue.x-k8s.io/status, pods, pods/log
    namespace: str
    name: str
    status: int  # of the answer, 0 before it
    uri: str


class AuditLog:
    """The log of one API server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Now, for `since`."""
        return self.path.stat().st_size if self.path.exists() else 0

    def calls(
        self, *, since: int = 0, user: str = "", user_agent: str = "", verb: str = ""
    ) -> list[Call]:
        """Calls after a mark, each once: of a user, of agents that begin so, of a verb."""
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
        """How many calls by (user, verb, resource)."""
        found = self.calls(since=since, user=user, user_agent=user_agent, verb=verb)
        return Counter((call.user, call.verb, call.resource) for call in found)

    def touched(self, namespace: str, *, since: int) -> bool:
        """Whether anybody has asked to change a namespace or anything in it."""
        name = f"/namespaces/{namespace}".encode()
        with self.path.open("rb") as log:
            log.seek(since)
            return any(name in line and not any(verb in line for verb in READS) for line in log)

    def _read(self, since: int) -> Iterator[Call]:
        if not self.path.exists():
            return
        entries: dict[str, dict[str, Any]] = {}  # by call, the latest that is known of it
        with self.path.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # being written now
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
