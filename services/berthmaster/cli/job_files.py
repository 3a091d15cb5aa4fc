"""Files of jobs: JSON as it is, or YAML documents; `after` says whom one waits for. Pure."""

import math
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final

import msgspec

from berthmaster.cli.arrays import parse_after
from berthmaster.cli.requests import WrongInput, read_requests

MOST_JOBS: Final = 100_000  # of a file of YAML, whose aliases can be more than they look
MOST_VALUES: Final = 2_000_000


def read_jobs(data: bytes, where: str) -> list[bytes]:
    """The bodies of a file, `after` written as `depends_on`. JSON is sent as it was written but for
    that: the gateway is who checks it. Raises WrongInput."""
    if data.strip()[:1] in (b"{", b"["):
        bodies = read_requests(data, where)
    elif not data.strip():
        raise WrongInput(f"{where} is empty; expected jobs as JSON or YAML")
    else:
        bodies = _of_yaml(data, where)
    return [_with_after(body, where) if b'"after"' in body else body for body in bodies]


def _of_yaml(data: bytes, where: str) -> list[bytes]:
    import yaml

    try:
        documents = [one for one in yaml.safe_load_all(data) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        told = getattr(error, "problem", None) or "it cannot be read"
        raise WrongInput(f"{where}{at} is neither JSON nor YAML: {told}") from error
    except (ValueError, RecursionError) as error:
        raise WrongInput(f"{where} cannot be read as YAML: {error}") from error
    jobs = [job for one in documents for job in (one if isinstance(one, list) else [one])]
    if not jobs:
        raise WrongInput(f"{where} holds no job")
    if len(jobs) > MOST_JOBS:
        raise WrongInput(f"{where} holds {len(jobs):,} jobs; at most {MOST_JOBS:,} go in one file")
    left = [MOST_VALUES]
    bodies = []
    for number, job in enumerate(jobs, 1):
        if not isinstance(job, dict):
            raise WrongInput(f"{where}, document {number} is no job: right is 'id: NAME' and so on")
        bodies.append(msgspec.json.encode(_plain(job, f"{where}, document {number}", left)))
    return bodies


def _plain(value: Any, at: str, left: list[int], depth: int = 0) -> Any:
    """As JSON has it. Raises WrongInput for what JSON has not."""
    left[0] -= 1
    if left[0] < 0 or depth > 64:
        raise WrongInput(f"{at}: too much of it, or aliases that go in a circle")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise WrongInput(f"{at}: the key {key!r} is no text; put it in quotes")
        return {key: _plain(each, f"{at}.{key}", left, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(one, f"{at}[{n}]", left, depth + 1) for n, one in enumerate(value)]
    if isinstance(value, datetime | date):
        raise WrongInput(f"{at}: {value} is read as a time; put it in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongInput(f"{at}: {value} is no number; put it in quotes if it is a text")
    if value is None or isinstance(value, str | int | float):
        return value
    raise WrongInput(f"{at}: a {type(value).__name__} has no place in a job")


def _with_after(body: bytes, where: str) -> bytes:
    """`after: a`, `after: [a, b:ended]` as the field that the API has. Raises WrongInput."""
    try:
        job = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body  # the gateway says what is wrong with it
    if not isinstance(job, Mapping) or "after" not in job:
        return body
    name = job.get("id")
    if "depends_on" in job:
        raise WrongInput(f"{where}, job {name}: give after or depends_on, not both")
    others = [job["after"]] if isinstance(job["after"], str) else job["after"]
    if not isinstance(others, list) or not all(isinstance(one, str) for one in others):
        right = "an id, or a list of ID, ID:succeeded or ID:ended"
        raise WrongInput(f"{where}, job {name}: after is {job['after']!r}; right is {right}")
    rest = {key: value for key, value in job.items() if key != "after"}
    return msgspec.json.encode(rest | {"depends_on": parse_after(others)})
