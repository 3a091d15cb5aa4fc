"""Identifies the clusters behind the contexts of `berth up`, once before the start.

Example: `--worker a=prod-1 --worker b=prod-2`, with one API server behind both contexts. The UID of
the namespace kube-system is the same, and `berth up` refuses the second name. A context is *away*
without a valid answer in time. `berth up` continues without the cluster, and the cluster's services
keep trying.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Forbidden, KubernetesError, NotFound
from berthmaster.lib.kube.service_client import access_by
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.supervisor.plan import KubeTarget

MEET_S: Final = 5.0  # per context, including the credential plugin


class Met(NamedTuple):
    target: KubeTarget
    uid: str = ""  # of the API server's namespace kube-system; "" = unknown
    away: str = ""  # why the API server does not answer; "" = it answers


async def meet(targets: Iterable[KubeTarget], *, limit_s: float = MEET_S) -> list[Met]:
    """Query all contexts concurrently, each within the limit."""
    log = Log("up", level="error", format="text")
    return list(await asyncio.gather(*(_meet(target, log, limit_s) for target in targets)))


async def _meet(target: KubeTarget, log: Log, limit_s: float) -> Met:
    try:
        async with asyncio.timeout(limit_s):
            access = await access_by(target.kubeconfig, target.context)
            client = await Client.open(access, user_agent="berth-up", log=log, timeout_s=limit_s)
            async with client:
                return Met(target, await client.uid())
    except (Forbidden, NotFound):
        return Met(target)  # the API server answers, but denies these credentials the UID
    except TimeoutError:
        return Met(target, away=f"no answer within {limit_s:g} s")
    except (KubernetesError, OSError) as error:
        return Met(target, away=str(error) or type(error).__name__)


def named_twice(workers: Sequence[Met]) -> str:
    """Return the error if two workers are the same cluster; "" = all differ."""
    first: dict[str, KubeTarget] = {}
    for met in workers:
        other = first.setdefault(met.uid, met.target) if met.uid else met.target
        if other is not met.target:
            return (
                f"workers {other.name!r} and {met.target.name!r} are one cluster: the namespace "
                f"kube-system has the UID {met.uid} in both; name it once"
            )
    return ""


def away(met: Iterable[Met]) -> Mapping[str, str]:
    """Return the reasons why clusters are left out, by name."""
    return {one.target.name: one.away for one in met if one.away}
