"""Files of jobs and settings: from JSON or YAML to bodies of requests. Pure."""

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.cli.job.requests import parse_after
from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.api import Refusal

MOST_JOBS: Final = 100_000  # limit of a YAML file


def read_jobs(data: bytes, where: str) -> list[bytes]:
    """Return the bodies of a file, with `after` rewritten as `depends_on`.

    All other JSON is sent as written, because the gateway validates requests. Raises WrongInput.
    """
    if data.strip()[:1] in (b"{", b"["):
        bodies = read_requests(data, where)
    elif not data.strip():
        raise WrongInput(f"{where} is empty; expected jobs as JSON or YAML")
    else:
        bodies = _of_yaml(data, where)
    return [_with_after(body, where) if b'"after"' in body else body for body in bodies]


def _of_yaml(data: bytes, where: str) -> list[bytes]:
    from berthmaster.lib.runtime.plain_yaml import NotYaml, Refused, documents

    try:
        found = [one for one in documents(data) if one is not None]
    except Refused as error:
        at = f"{where}, line {error.line}"
        raise WrongInput(f"{at}: {error.problem}; write each value where it belongs") from error
    except NotYaml as error:
        at = f", line {error.line}" if error.line else ""
        raise WrongInput(f"{where}{at} is neither JSON nor YAML: {error.problem}") from error
    jobs = [job for one in found for job in (one if isinstance(one, list) else [one])]
    if not jobs:
        raise WrongInput(f"{where} holds no job")
    if len(jobs) > MOST_JOBS:
        raise WrongInput(f"{where} holds {len(jobs):,} jobs; at most {MOST_JOBS:,} go in one file")
    bodies = []
    for number, job in enumerate(jobs, 1):
        if not isinstance(job, dict):
            raise WrongInput(f"{where}, document {number} is no job: right is 'id: NAME' and so on")
        bodies.append(msgspec.json.encode(_plain(job, f"{where}, document {number}")))
    return bodies


def _plain(value: Any, at: str) -> Any:
    """Return a value as JSON. Raises WrongInput for a value without a JSON form."""
    if isinstance(value, dict):
        return {key: _plain(each, f"{at}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(one, f"{at}[{n}]") for n, one in enumerate(value)]
    if isinstance(value, datetime | date):
        raise WrongInput(f"{at}: {value} is read as a time; put it in quotes")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise WrongInput(f"{at}: {value} has more than 64 bits; put it in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongInput(f"{at}: {value} is no number; put it in quotes if it is a text")
    return value


def _with_after(body: bytes, where: str) -> bytes:
    """Rewrite `after: a` or `after: [a, b:ended]` as the API's field. Raises WrongInput."""
    try:
        job = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body  # the gateway reports the error
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


T = TypeVar("T")


def read_requests(data: bytes, where: str) -> list[bytes]:
    """Return the bodies of a file: one object, an array, or one object per line.

    The bodies are sent as written, because the gateway validates requests. Raises WrongInput for
    invalid JSON.
    """
    text = data.strip()
    if not text:
        raise WrongInput(f"{where} is empty; expected a job request as JSON")
    try:
        if text.startswith(b"["):
            raws = msgspec.json.decode(text, type=list[msgspec.Raw])
            if not raws:
                raise WrongInput(f"{where} holds no job request: the array is empty")
            return [bytes(raw) for raw in raws]
        msgspec.json.decode(text, type=msgspec.Raw)
        return [text]
    except msgspec.DecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            for line in lines:
                msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            raise WrongInput(f"{where} is not JSON: {error}") from error
        return lines


def read_named(
    data: bytes,
    where: str,
    what: str,
    read: Callable[[bytes], T | Refusal],
    name_of: Callable[[T], str],
) -> list[T]:
    """Return all settings of a file, each validated by ``read`` as in the gateway.

    Raises WrongInput, also for a repeated name.
    """
    found: dict[str, T] = {}
    for number, body in enumerate(read_requests(data, where), 1):
        setting = read(body)
        if isinstance(setting, Refusal):
            at = f"{where}, {what} {number}: {setting.field or 'the whole'}"
            raise WrongInput(f"{at} is {setting.value}; right is {setting.expected}")
        if (name := name_of(setting)) in found:
            raise WrongInput(f"{where}, {what} {number}: {name!r} is there twice")
        found[name] = setting
    return list(found.values())


def id_of(body: bytes) -> str:
    """Return the id in a body of any form; "" = none."""
    try:
        return msgspec.json.decode(body, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Named(msgspec.Struct):
    """The part of a request for an error message, whatever the errors in the rest."""

    id: str = ""
