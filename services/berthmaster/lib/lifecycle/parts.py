"""The ids of the parts of divided jobs, which no request can have. Pure."""

import re
from typing import Final

_OF_PART: Final = re.compile(r"(?P<job>.+)--(?P<number>[0-9]+)-[0-9]+\Z")


def part_id(job: str, number: int, part: int) -> str:
    """``<job>--<number>-<part>``: the number is that of the division, so that no id comes twice."""
    return f"{job}--{number}-{part}"


def division_of(workload_id: str) -> tuple[str, int] | None:
    """The job and the number of the division that a part is of; None: it has no part's id."""
    if "--" not in workload_id:  # most have not
        return None
    found = _OF_PART.match(workload_id)
    return (found["job"], int(found["number"])) if found is not None else None
