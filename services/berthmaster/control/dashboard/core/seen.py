"""Running services, known by answers to pings and by held leases. Pure."""

from typing import Any, Final, NamedTuple

from berthmaster.lib.messages.records import Lease

PING_S: Final = 2.0  # between two pings
SILENT_S: Final = 6.0  # without an answer, after which a service is silent: three pings
FORGOTTEN_S: Final = 3_600.0
MAX_SEEN: Final = 1_000
PREFIX: Final = "berth-"


class _Seen(NamedTuple):
    at_s: float
    silent_s: float  # maximum time without an answer


class Services:
    """Time of the last answer of each service."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}  # service, instance

    def on_answer(self, name: str, instance: str, now_s: float) -> None:
        self._hear((name.removeprefix(PREFIX), instance), _Seen(now_s, SILENT_S))

    def on_lease(self, lease: Lease, stored_at_s: float) -> None:
        """Take a lease that was renewed or released."""
        who = (lease.name.partition(".")[0], lease.holder)
        if lease.released:
            self._seen.pop(who, None)
        else:
            self._hear(who, _Seen(stored_at_s, max(SILENT_S, lease.ttl_s)))

    def _hear(self, who: tuple[str, str], seen: _Seen) -> None:
        if who in self._seen or len(self._seen) < MAX_SEEN:
            self._seen[who] = seen

    def document(self, now_s: float) -> list[dict[str, Any]]:
        """Return each service with its number of live instances, and the last answer of a silent
        one.
        """
        for who, seen in list(self._seen.items()):
            if now_s - seen.at_s > FORGOTTEN_S:
                del self._seen[who]
        found: dict[str, dict[str, Any]] = {}
        for (name, _), seen in sorted(self._seen.items()):
            one = found.setdefault(name, {"service": name, "heard": 0, "last_at_s": 0.0})
            one["last_at_s"] = max(one["last_at_s"], round(seen.at_s, 1))
            one["heard"] += now_s - seen.at_s <= seen.silent_s
        for one in found.values():
            if one["heard"]:
                one["last_at_s"] = None  # alive: its last answer is irrelevant
        return list(found.values())
