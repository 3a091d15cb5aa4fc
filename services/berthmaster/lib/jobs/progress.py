"""What a job says of itself on its standard output: how far it is, and where its checkpoints are.

A line for it begins with the word ``BERTH``, a blank and an object of JSON::

    BERTH {"step": 400, "loss": 0.71, "eta_s": 5400}
    BERTH {"checkpoint": {"step": 400, "uri": "s3://runs/train-1/400"}}

One line may say both. Launchers write whose line it is before it (``[rank0]:``,
``[1,0]<stdout>:``): what begins with a bracket and is short is passed over. Other fields are the
job's own and are left alone; a loss that is no number (``NaN``) counts as none. What cannot be read
is counted, and ends nothing.
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
    """The newest of each that some lines say."""

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    said_ns: int = 0  # when that progress was written; 0 = nobody knows
    unreadable: int = 0  # lines that begin as they should, and say nothing that can be understood


def heard_in(lines: Iterable[bytes]) -> Heard:
    """Lines of a log as the kubelet gives them, or without its times, in their order."""
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
    """None: it cannot be understood."""
    if len(body) > MAX_SAID_BYTES:
        return None
    try:
        said = _DECODER.decode(_NO_NUMBER.sub(b"null", body))
    except UNREADABLE:
        return None
    return None if said.step is None and said.checkpoint is None else said
