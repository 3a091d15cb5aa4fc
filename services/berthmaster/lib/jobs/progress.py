"""A job's reports on its standard output: its progress and its checkpoints.

A report is a line with the word ``BERTH``, a blank and a JSON object::

    BERTH {"step": 400, "loss": 0.71, "eta_s": 5400}
    BERTH {"checkpoint": {"step": 400, "uri": "s3://runs/train-1/400"}}

One line may report both. Launchers prefix a line with its rank (``[rank0]:``, ``[1,0]<stdout>:``),
so a short prefix in brackets is skipped. Other fields belong to the job and are ignored. A loss
that is no number (``NaN``) counts as missing. Unreadable lines are counted, and cause no error.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.lib.jobs.lines import written_ns
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.workload import Checkpoint, Loss, Progress

MAX_SAID_BYTES: Final = 4096  # of one line
_SAID: Final = re.compile(rb"(?:\[[^\s{]{1,60}[:>\]] ?)?BERTH (\{.*\})\s*\Z")
_NO_NUMBER: Final = re.compile(rb"(?<=[:,\s])-?(?:NaN|Infinity)(?=[\s,}])")


class _Said(msgspec.Struct):
    step: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    loss: Loss | None = None
    eta_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None
    checkpoint: Checkpoint | None = None


_DECODER: Final = msgspec.json.Decoder(_Said)


class Heard(NamedTuple):
    """The newest progress and checkpoint in some lines."""

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    said_ns: int = 0  # time of this progress in nanoseconds since 1970; 0 = unknown
    unreadable: int = 0  # malformed lines with the prefix


def heard_in(lines: Iterable[bytes]) -> Heard:
    """Return the reports in lines of a log, with or without the kubelet's times, in order."""
    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    said_ns = unreadable = 0
    for line in lines:
        if b"BERTH " not in line:
            continue
        at_ns = written_ns(line)
        text = line if at_ns is None else line.partition(b" ")[2]
        if (found := _SAID.match(text)) is None:
            continue
        said = _decoded(found.group(1))
        if said is None:
            unreadable += 1
            continue
        if said.checkpoint is not None:
            checkpoint = said.checkpoint
        if said.step is not None:
            progress = Progress(step=said.step, loss=said.loss, eta_s=said.eta_s)
            said_ns = at_ns or 0
    return Heard(progress, checkpoint, said_ns, unreadable)


def _decoded(body: bytes) -> _Said | None:
    """Decode a report, or return None for a malformed one."""
    if len(body) > MAX_SAID_BYTES:
        return None
    try:
        said = _DECODER.decode(_NO_NUMBER.sub(b"null", body))
    except UNREADABLE:
        return None
    return None if said.step is None and said.checkpoint is None else said
