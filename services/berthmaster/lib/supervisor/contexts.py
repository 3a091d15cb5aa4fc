"""Which clusters the contexts of `berth up` lead to, asked once before anything is started.

Example: `--worker a=prod-1 --worker b=prod-2`, where both contexts lead to one API server. The UID
of its namespace kube-system says so, and `berth up` refuses the second name. A context that does
not answer in time, or not with what we need, is *away*: `berth up` goes on without it, and its
services keep trying.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Forbidden, KubernetesError, NotFound
from berthmaster.lib.kube.service_client import access_by
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.supervisor.plan import KubeTarget

MEET_S: Final = 5.0  # for one context, its credential plugin included


class Met(NamedTuple):
    target: KubeTarget
    uid: str = ""  # of the API server's namespace kube-system; "" = not known
    away: str = ""  # why it does not answer; "" = it does


async def meet(targets: Iterable[KubeTarget], *, limit_s: float = MEET_S) -> list[Met]:
    """Ask all contexts at once, each for no longer than the limit."""
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
        return Met(target)  # it answers, and these credentials may not ask that
    except TimeoutError:
        return Met(target, away=f"no answer within {limit_s:g} s")
    except (KubernetesError, OSError) as error:
        return Met(target, away=str(error) or type(error).__name__)


def named_twice(workers: Sequence[Met]) -> str:
    """Return what is wrong where two workers are one cluster; "" where none are."""
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
    """Return why clusters are left out, by name."""
    return {one.target.name: one.away for one in met if one.away}
