"""`berth report sharing`: granted and measured use of running jobs with fractions of GPUs."""

import asyncio
from typing import Final

import msgspec

from berthmaster.client import Client
from berthmaster.lib.lifecycle.gpu_shares import is_sharing, share_use
from berthmaster.lib.messages.api import GetReply

AT_ONCE: Final = 16  # requests


class SharingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One running job. Quantities are sums over its fractions; null = not limited, or not
    measured."""

    id: str
    cluster: str
    queue: str
    used_milli: int | None = None
    granted_milli: int | None = None
    used_mib: int | None = None
    granted_mib: int | None = None
    exceeds: tuple[str, ...] = ()


async def running_jobs(berth: Client, limit: int, *, story: bool = False) -> list[GetReply]:
    """Return the tenant's running jobs with their last samples."""
    listed = await berth.list(states=("running",), limit=limit)
    free = asyncio.Semaphore(AT_ONCE)

    async def read(workload: str) -> GetReply:
        async with free:
            return await berth.get(workload, story=story)

    return await asyncio.gather(*(read(one.id) for one in listed.workloads))


async def rows(berth: Client, limit: int) -> list[SharingRow]:
    """Read the tenant's running jobs with fractions."""
    replies = await running_jobs(berth, limit)
    return [row for row in map(row_of, replies) if row is not None]


def row_of(reply: GetReply) -> SharingRow | None:
    """Return the row of one job; None if it has no fraction of a GPU."""
    request, work = reply.request, reply.workload
    if request is None or not is_sharing(request):
        return None
    here = (one for one in reply.figures if one.cluster == work.cluster)
    figures = next((one for one in here if one.attempt == work.attempt), None)
    use = share_use(request, figures.use) if figures is not None else None
    if use is None:
        return SharingRow(id=work.id, cluster=work.cluster, queue=work.queue)
    return SharingRow(
        id=work.id,
        cluster=work.cluster,
        queue=work.queue,
        used_milli=use.used_milli,
        granted_milli=use.granted_milli,
        used_mib=use.used_mib,
        granted_mib=use.granted_mib,
        exceeds=use.exceeded,
    )
