"""One check, evaluated against the known state. Pure and stateless.

The result has the wanted configuration, the check's conditions and the message to waiting
Workloads.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from berthmaster.hub.admission.core.gate import CheckVerdict, listed
from berthmaster.hub.admission.core.index import HubIndex
from berthmaster.hub.admission.core.members import MOST, Members, members, names_of
from berthmaster.hub.admission.core.objects import check_of
from berthmaster.hub.admission.core.selection import Reason, Selection, select
from berthmaster.lib.kube.objects import Condition, timestamp
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueConfig

MAX_NAME_CHARS: Final = 63  # limit as a name in another check's parameters
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
MAX_MESSAGE_CHARS: Final = 4000
MAX_NOTE_CHARS: Final = 300
ACTIVE: Final = "Active"
TRUNCATED: Final = "Truncated"


class Review(NamedTuple):
    """The result for one check."""

    selection: Selection
    members: Members
    config: MultiKueueConfig | None  # Berthmaster's, in the present state
    obstacle: str  # why Berthmaster can write no configuration, or ""
    verdict: Selection  # reason and message of the condition Active
    standing: CheckVerdict

    @property
    def writes(self) -> bool:
        """Return whether the configuration differs from the wanted one."""
        if self.obstacle or not self.members.clusters:
            return False
        have = self.config
        return have is None or (have.clusters, have.draining) != self.members[:2]

    @property
    def being_made(self) -> bool:
        """Return whether only the first write of the configuration is missing."""
        return self.config is None and not self.obstacle and bool(self.members.open)

    @property
    def marked(self) -> tuple[str, ...]:
        """Return the known draining clusters that may leave once empty."""
        sure = self.selection.reason is Reason.ACTIVE
        somebody_stays = self.members.open or self.members.left_out
        if self.config is None or not somebody_stays or not sure:
            return ()
        return tuple(name for name in self.config.draining if name in self.members.draining)


def review(
    check: AdmissionCheck, index: HubIndex, *, free: Collection[str] = (), trouble: str = ""
) -> Review:
    """Return the review of a check.

    ``free`` are members that may leave now. ``trouble`` is the reason why the last write of the
    configuration failed.
    """
    name = check.metadata.name
    selection = select(check, index.ocm)
    config = index.configs.get(name)
    obstacle = _obstacle(name, config)
    if obstacle:
        config = None
    current, marked = (config.clusters, config.draining) if config is not None else ((), ())
    wanted = None if obstacle else selection.clusters
    planned = members(current, wanted, names_of(index.clusters), marked=marked, free=free)
    verdict = _verdict(name, selection, planned, config, obstacle, trouble, index)
    standing = _standing(selection, planned, config, verdict, index)
    return Review(selection, planned, config, obstacle, verdict, standing)


def _obstacle(name: str, config: MultiKueueConfig | None) -> str:
    if len(name) > MAX_NAME_CHARS or not _NAME.match(name):
        return (
            f"a MultiKueueConfig of this check's name could not be named by a check of MultiKueue: "
            f"right are up to {MAX_NAME_CHARS} of a-z, 0-9 and -"
        )
    if config is not None and check_of(config) != name:
        return (
            f"MultiKueueConfig {name} is there and is not ours; it is left alone (to hand it over, "
            f"see docs/integrations/ocm-kueue-addon.md)"
        )
    return ""


def _verdict(
    name: str,
    selection: Selection,
    planned: Members,
    config: MultiKueueConfig | None,
    obstacle: str,
    trouble: str,
    index: HubIndex,
) -> Selection:
    """Return the verdict. Active means that a passing Workload has a cluster to go to."""
    if selection.reason is not Reason.ACTIVE:
        kept = f"; MultiKueueConfig {name} stays as it is" if planned.clusters else ""
        if selection.reason is Reason.NO_CLUSTERS and planned.draining:
            kept = f"; MultiKueueConfig {name} keeps {listed(planned.draining)}, draining"
        return Selection(selection.reason, selection.message + kept)
    if obstacle:
        return Selection(Reason.CONFIG_ERROR, obstacle)
    if planned.left_out and not planned.open:
        return Selection(
            Reason.NO_CLUSTERS,
            f"{selection.message} selects {listed(planned.left_out)}: there is no room while "
            f"{listed(planned.draining)} drain",
        )
    if not planned.open:
        return Selection(
            Reason.NO_CLUSTERS,
            f"{selection.message} selects {listed(selection.clusters or ())}: "
            f"there is no MultiKueueCluster, nor a kubeconfig Secret to make one with",
        )
    failed = f"MultiKueueConfig {name} cannot be written: {trouble}" if trouble else ""
    if config is None:
        return Selection(Reason.CONFIG_ERROR, failed or f"MultiKueueConfig {name} is being made")
    words = [f"{selection.message}: {listed(planned.open)}"]
    if planned.draining:
        words.append(f"draining, nothing new goes there: {listed(planned.draining)}")
    if planned.unknown:
        words.append(f"no MultiKueueCluster and no kubeconfig Secret: {listed(planned.unknown)}")
    if not index.users(name):
        words.append(f"no check of MultiKueue names MultiKueueConfig {name} yet")
    return Selection(Reason.ACTIVE, "; ".join([*words, failed] if failed else words))


def _standing(
    selection: Selection,
    planned: Members,
    config: MultiKueueConfig | None,
    verdict: Selection,
    index: HubIndex,
) -> CheckVerdict:
    """Return whether Workloads pass: the hub's configuration must have a reachable cluster."""
    if verdict.reason is not Reason.ACTIVE or config is None:
        return CheckVerdict(False, f"{verdict.reason}: {verdict.message}")
    there = [name for name in config.clusters if name in planned.open]
    reached = tuple(c for c in there if c in index.clusters and index.clusters[c].connected)
    if not reached:
        return CheckVerdict(False, f"{Reason.NO_CLUSTERS}: {_unreached(there, index)}")
    return CheckVerdict(True, f"{selection.message} selects {listed(reached)}")


def _unreached(there: list[str], index: HubIndex) -> str:
    told = []
    for name in there:
        cluster = index.clusters.get(name)
        active = cluster.condition(ACTIVE) if cluster is not None else None
        why = f"{active.reason}: {active.message}" if active is not None else "nothing said yet"
        told.append(f"{name} ({why[:MAX_NOTE_CHARS]})")
    return f"Kueue reaches none of {listed(tuple(told))}"


def conditions(found: Review, check: AdmissionCheck, now_s: float) -> tuple[Condition, ...]:
    """Return the wanted conditions of the check. A time changes only with its status."""
    verdict, left_out = found.verdict, found.members.left_out
    good = verdict.reason is Reason.ACTIVE
    told = [_condition(check, ACTIVE, good, verdict.reason.value, verdict.message, now_s)]
    if left_out:
        words = (
            f"MultiKueue takes {MOST} clusters; {len(left_out)} more are selected and left out: "
            f"{listed(left_out)}"
        )
        told.append(_condition(check, TRUNCATED, True, "TooManyClusters", words, now_s))
    return tuple(told)


def _condition(
    check: AdmissionCheck, kind: str, true: bool, reason: str, message: str, now_s: float
) -> Condition:
    before = check.condition(kind)
    status = "True" if true else "False"
    since = before.last_transition_time if before and before.status == status else None
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARS],
        last_transition_time=since or timestamp(now_s),
        observed_generation=check.metadata.generation,
    )


def same(wanted: tuple[Condition, ...], check: AdmissionCheck) -> bool:
    """Return whether the check's status is current."""
    for kind in (ACTIVE, TRUNCATED):
        want = next((one for one in wanted if one.type == kind), None)
        have = check.condition(kind)
        if (want is None) != (have is None):
            return False
        if want and have and _meaning(want) != _meaning(have):
            return False
    return True


def _meaning(told: Condition) -> tuple[str, str, str]:
    return told.status, told.reason, told.message
