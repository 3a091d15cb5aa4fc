"""Request and reply of the verb ``suggest``: other configurations of a job.

A tenant asks ``berth.api.<tenant>.suggest`` about its own jobs. An operator asks
``berth.operator.suggest`` about the jobs of any tenant. The verb only reads ended jobs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.workload import LabelText

Change = Literal["fewer_gpus", "more_gpus", "smaller_slice", "other_pods", "other_model"]
Best = Literal["time", "cost", "start"]


class SuggestRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Other configurations in which jobs like this one ran."""

    id: Annotated[
        str, Meta(min_length=1, max_length=253, description="Id of the job, pending or ended too")
    ]
    tenant: Annotated[
        LabelText, Meta(description="Tenant of the job; a tenant may name only itself")
    ] = ""


class Configuration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one layout and model, with the ended jobs that ran on them."""

    layout: str
    # layout: pods x GPUs of each, such as 2x8, 1x0.5 or 1x1g.10gb; pod sets are joined by +
    model: str = ""  # GPU model; "" = unknown, or no GPU
    gpus: float = 0.0  # GPUs of all pods together
    own: bool = False  # whether the job itself has this configuration
    changes: tuple[Change, ...] = ()  # differences from the job's own configuration
    by: Literal["jobs", "profile"] = "jobs"
    # by: evidence: jobs that ran in this configuration, or measured usage that fits into it
    jobs: int = 0  # number of jobs that the times rest on, or of measured attempts
    failed: int = 0  # number of jobs that failed in this configuration
    ran_low_s: float | None = None
    # ran_low_s: run time in seconds that one job in ten stays below; null = no job succeeded
    ran_s: float | None = None  # median run time in seconds; null = no job succeeded
    ran_high_s: float | None = None
    # ran_high_s: run time in seconds that one job in ten exceeds; null = no job succeeded
    wait_s: float | None = None  # median wait for placement in seconds; null = unknown
    gpu_h: float | None = None  # median of allocated GPU hours; null = no job succeeded
    cost: float | None = None  # GPU hours by price; null = no price for the model, or unknown
    best: tuple[Best, ...] = ()
    # best: time = shortest run time, cost = lowest cost (GPU hours without prices), start =
    # shortest wait


class Suggestions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.suggest.v1"
):
    """Reply of ``suggest``: the job's own configuration first, then those of lower cost."""

    tenant: str  # tenant of the job
    id: str  # id of the job
    by: Literal["program", "labels"] = "program"  # property that the jobs share
    configurations: tuple[Configuration, ...] = ()  # configurations in which such jobs ended
    currency: str = ""  # currency of cost; "" = no prices are set
    notes: tuple[str, ...] = ()  # missing data and the causes, for display
