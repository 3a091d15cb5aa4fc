"""Arrays and dependent jobs: from text to requests, in order. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.workload import MAX_ARRAY_INDEX, MAX_ARRAY_JOBS, JobRequest

_ARRAY: Final = re.compile(r"(\d{1,18})-(\d{1,18})(?:%(\d{1,18}))?")
_ID_CHARS: Final = 52


def parse_array(text: str) -> tuple[range, int | None]:
    """Return the indices and the limit of concurrent jobs of 0-99%8. Raises WrongInput."""
    found = _ARRAY.fullmatch(text.strip())
    if found is None or not text.isascii():
        raise WrongInput(f"--array {text!r}: right is FIRST-LAST or FIRST-LAST%ATONCE, as 0-99%8")
    first, last = int(found[1]), int(found[2])
    at_once = int(found[3]) if found[3] else None
    if last < first:
        raise WrongInput(f"--array {text}: the last index is below the first")
    if last - first >= MAX_ARRAY_JOBS or last > MAX_ARRAY_INDEX:
        raise WrongInput(
            f"--array {text}: {last - first + 1:,} jobs up to index {last:,}; an array has at most "
            f"{MAX_ARRAY_JOBS:,} jobs and indices up to {MAX_ARRAY_INDEX:,}"
        )
    if at_once is not None and not 1 <= at_once <= MAX_ARRAY_JOBS:
        raise WrongInput(f"--array {text}: at once are 1 to {MAX_ARRAY_JOBS:,}")
    return range(first, last + 1), at_once


def array_of(request: JobRequest, text: str) -> list[JobRequest]:
    """Return the jobs of an array.

    The request's id names the set, and with the index each job. Raises WrongInput.
    """
    indices, at_once = parse_array(text)
    name = request.set or request.id
    longest = f"{request.id}-{indices[-1]}"
    if len(longest) > _ID_CHARS:
        raise WrongInput(f"--id: {longest} has more than {_ID_CHARS} characters")
    return [
        msgspec.structs.replace(
            request,
            id=f"{request.id}-{index}",
            set=name,
            set_at_most=at_once if at_once is not None else request.set_at_most,
            array_index=index,
        )
        for index in indices
    ]


def in_order(bodies: Sequence[bytes]) -> list[bytes]:
    """Return a file's requests, each after its dependencies in the file, else in file order.

    Raises WrongInput for a cycle.
    """
    needs: dict[int, set[str]] = {}
    at: dict[str, int] = {}
    for number, body in enumerate(bodies):
        request = _plain(body)
        if isinstance(name := request.get("id"), str):
            at.setdefault(name, number)
        others = request.get("depends_on")
        needs[number] = {
            other["id"]
            for other in (others if isinstance(others, list) else ())
            if isinstance(other, dict) and isinstance(other.get("id"), str)
        }
    done: list[int] = []
    state: dict[int, int] = {}  # 1 = in progress, 2 = done
    for start in range(len(bodies)):
        todo = [(start, iter(sorted(needs[start])))] if start not in state else []
        if todo:
            state[start] = 1
        while todo:
            number, rest = todo[-1]
            name = next(rest, None)
            if name is None:
                state[number] = 2
                done.append(number)
                todo.pop()
            elif (other := at.get(name)) is not None and state.get(other) != 2:
                if state.get(other) == 1:
                    path = [one for one, _ in todo]
                    names = [_plain(bodies[one]).get("id") for one in path[path.index(other) :]]
                    circle = " -> ".join(map(str, [*names, name]))
                    raise WrongInput(f"depends_on goes in a circle: {circle}")
                state[other] = 1
                todo.append((other, iter(sorted(needs[other]))))
    return [bodies[number] for number in done]


def _plain(body: bytes) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # the gateway reports the error
    return value if isinstance(value, dict) else {}
