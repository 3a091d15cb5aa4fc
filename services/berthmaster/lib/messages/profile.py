"""Profiles of jobs: the request and the reply of the verb ``profile``.

Subjects: ``berth.api.<tenant>.profile`` for a tenant, of its own jobs; ``berth.operator.profile``
of any tenant's. Both only read. A profile is an observation, like the usage metrics that it is made
of.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.workload import LabelText

Ending = Literal["", "withdrawn", "evicted", "succeeded", "failed", "cancelled"]
BoundBy = Literal["", "compute", "memory", "input", "network", "idle"]
Stage = Literal["startup", "steady", "evaluation", "checkpoint"]
# What ended an attempt: that of its event (workload.Fault), or gpu_out_of_memory where the kept end
# of its log says so.
ProfileFault = Annotated[str, Meta(max_length=64)]


class ProfileRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The profile of a job, by attempt; or of all ended jobs like it."""

    id: Annotated[
        str, Meta(min_length=1, max_length=253, description="The job; one that waits has likes too")
    ]
    like: Annotated[bool, Meta(description="Of ended jobs like it, together")] = False
    tenant: Annotated[
        LabelText, Meta(description="Whose job; a tenant may name itself and nobody else")
    ] = ""


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric over an attempt, by means of half minutes, right within a few per cent."""

    p50: float  # median
    p95: float  # 95th percentile
    peak: float  # highest sample where that is known, else the highest mean


class Results(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results that the job reported by progress lines."""

    first_step: int  # step of the first report
    last_step: int  # highest step reported
    last_step_at_s: float  # time of that report by the server's clock
    loss: float | None = None  # last loss reported; null = none
    steps_per_s: float | None = None  # throughput between first and last step; null = one report


class AttemptProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Profile of one attempt of a job in one cluster."""

    attempt: int  # number of the attempt
    cluster: str  # cluster of the attempt
    end: Ending = ""  # ending of the attempt; "" = it has not ended
    fault: ProfileFault = ""  # cause of the ending, such as exit or gpu_out_of_memory; "" = unset
    evidence: tuple[str, ...] = ()  # evidence of gpu_out_of_memory: log, memory
    since_s: float = 0.0  # time of the first measurement or report
    until_s: float = 0.0  # time of the last measurement or report
    measured_s: float = 0.0  # seconds with measurements
    gpus: int = 0  # number of allocated devices
    pods: int = 0  # number of measured pods
    metrics: dict[str, Spread] = {}  # spread by metric, such as gpu_utilization_percent
    bound_by: BoundBy = ""  # resource that bounds the attempt; "" = not known
    shares: dict[str, float] = {}  # medians from 0 to 1 that bound_by rests on
    stage: Stage | None = None  # stage at the last measurement; null = not measured
    stages: dict[str, float] = {}  # measured seconds by stage
    results: Results | None = None  # results of the job; null = it reported no step


class LikeProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Profile of all attempts of ended jobs like one, together."""

    by: Literal["labels", "shape"]
    # by: what the jobs have in common: queue and shape, and with labels their labels too
    jobs: int  # number of jobs
    attempts: int  # number of attempts
    ends: dict[str, int] = {}  # number of attempts by ending
    faults: dict[str, int] = {}  # number of attempts by cause of the ending
    metrics: dict[str, Spread] = {}  # spread by metric over all attempts
    bound_by: BoundBy = ""  # resource that bounds them; "" = not known
    shares: dict[str, float] = {}  # medians from 0 to 1 that bound_by rests on
    stages: dict[str, float] = {}  # measured seconds by stage
    steps_per_s: float | None = None  # median throughput of attempts with steps; null = none
    measured_s: float = 0.0  # seconds with measurements


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.profile.v1"):
    """Reply of ``profile``."""

    tenant: str  # tenant of the job
    id: str  # id of the job
    attempts: tuple[AttemptProfile, ...] = ()  # attempts of the job, the first one first
    like: LikeProfile | None = None  # profile of jobs like it; null = not requested, or none ended
    notes: tuple[str, ...] = ()  # missing parts of the reply and their causes, for display
