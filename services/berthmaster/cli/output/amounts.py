"""Quantities as text for users: ages, durations, GPUs, fractions."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

FULL, EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "."
K = TypeVar("K", bound=str)
_PARTS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def age(seconds: float) -> str:
    """Return an age in one or two units: 0s, 59s, 12m, 3h05m, 4d."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def since(then_s: float, now_s: float) -> str:
    """Return the age of a time stamp; 0 is "never"."""
    return age(now_s - then_s) if then_s else "-"


def duration(seconds: float) -> str:
    """Return a duration with three significant digits: 850 us, 12.3 ms, 4.56 s, 3m20s."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{_three(seconds * 1000)} ms"
    return f"{_three(seconds)} s" if seconds < 120 else age(seconds)


def _three(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def clock(at_s: float) -> str:
    """Return the local time of day of a time stamp, to the millisecond."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


def moment(at_s: float) -> str:
    """Return local date and time of a time stamp, with its zone."""
    if not at_s:
        return "-"
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def zone(at_s: float) -> str:
    """Return the local zone of a time stamp, for a column's head: CET."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Z")


def number(value: float) -> str:
    """Return a number without needless digits: 8, 0.5, 1,213."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}".rstrip("0").rstrip(".")


def many(count: int, noun: str) -> str:
    """Return a count with its noun: "1 time", "2 times"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float | None) -> str:
    """Return a fraction of 0..1 in percent; None is unknown, not zero."""
    return "?" if share is None or math.isnan(share) else f"{share * 100:.0f}%"


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar for a fraction of 0..1, always ``width`` characters long."""
    share = min(1.0, max(0.0, share))
    if ascii_only:
        filled = round(share * width)
        return ASCII_FULL * filled + ASCII_EMPTY * (width - filled)
    eighths = round(share * width * 8)
    whole, rest = divmod(eighths, 8)
    text = FULL * whole + _PARTS[rest]
    return text + EMPTY * (width - len(text))


def indices(numbers: Sequence[int]) -> str:
    """Return GPU indices as ranges: 0-3,6."""
    parts: list[str] = []
    ordered = sorted(numbers)
    start = 0
    for at in range(1, len(ordered) + 1):
        if at < len(ordered) and ordered[at] == ordered[at - 1] + 1:
            continue
        first, last = ordered[start], ordered[at - 1]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = at
    return ",".join(parts)


def counted(counts: Mapping[K, int], separator: str = " · ") -> str:
    """Return the counts above zero with their names: "3 running · 1 queued"."""
    return separator.join(f"{count:,} {name}" for name, count in counts.items() if count)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of at least one value in rising order."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
