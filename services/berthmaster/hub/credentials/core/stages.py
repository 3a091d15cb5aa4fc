"""The stage of a cluster's credentials and the next step, as a table. Pure.

Rules of this file:

- A stage describes the present state of both sides, never past actions. After a restart or a
  takeover, a replica finds the same stage and continues.
- A row is (stage, condition), and the first row whose condition holds is the stage. One table is
  for clusters that get access, the other for clusters that lose access.
- A deleted cluster that a MultiKueueConfig still lists keeps its access, with renewals, until
  drained. Revoking earlier would run jobs twice.
- A new token is published before the old token's bound Secret is deleted. The deletion waits
  ``grace_s``, so that a client with the old token can finish.
- Kueue gets no registration before this process has verified the token.
- An unpublished token is at most ``MINTED_S`` old. After that, another leader may have deleted its
  bound Secret as an orphan.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Managed,
    Minted,
    Observed,
    Referenced,
    Refused,
    Survey,
)

MINTED_S: Final = 20.0
RENEW_SHARE: Final = 2 / 3  # fraction of a token's lifetime; the kubelet renews at 80 %


class Stage(Enum):
    """The stage of one cluster."""

    # Stages with access.
    IN_THE_WAY = "InTheWay"  # another client owns an object under Berthmaster's name
    REGISTER = "Registering"
    NO_SOURCE = "NoSource"  # no bootstrap Secret exists
    REFUSED = "Refused"  # the bootstrap is not accepted
    PUBLISH = "Publishing"
    PREPARE = "Preparing"
    MINT = "Minting"
    REQUEST = "Requesting"  # from OCM
    AWAIT = "AwaitingToken"  # from OCM or from a plugin
    ADOPT = "Adopting"  # the token of OCM or of a plugin
    SWEEP = "Sweeping"
    CHECK = "Checking"
    DESCRIBE = "Describing"  # the access provider in Berthmaster's own profile
    HELD = "Held"
    # Stages without access.
    UNREGISTER = "Unregistering"
    RELEASE = "Releasing"  # OCM's objects
    EMPTY = "Emptying"  # the hub's Secret, because the worker is unreachable
    REVOKE = "Revoking"
    FORGET = "Forgetting"
    LINGER = "Lingering"  # wait until an irrevocable token expires
    LOOK = "Looking"
    NOTHING = "Nothing"


class Due(Enum):
    """The reason for a new token."""

    FIRST = "there is none"
    REPLACED = "the cluster was replaced"
    REVOKED = "what it was bound to is gone"
    REJECTED = "the worker does not know it any more"
    EXPIRING = "it is to be renewed"
    ROTATED = "OCM or a plugin brought a new one"


CHECK_S: Final = 60.0


class Times(NamedTuple):
    """Times that stages depend on, in seconds."""

    renew_after_s: float = 0.0  # 0 = RENEW_SHARE only
    grace_s: float = 60.0
    check_s: float = CHECK_S  # seconds between two real calls with each token that Kueue has


class View(NamedTuple):
    """One cluster: the state of the hub, and the findings of this process."""

    seen: Observed
    survey: Survey | None = None
    minted: Minted | None = None
    rejected: str = ""  # serial that the worker rejected
    checked_at_s: float = 0.0
    revoked: bool = False  # revoked by this process
    failed_to_revoke: bool = False
    way_in: Bootstrap | None = None  # the last known bootstrap, used to revoke
    now_s: float = 0.0
    times: Times = Times()


def keeps(view: View) -> bool:
    """Return whether the cluster gets access."""
    return view.seen.known or bool(view.seen.listed_by)


def renew_at_s(view: View) -> float:
    """Return the time to renew the token that Kueue has."""
    held = view.seen.secret
    if held is None:
        return 0.0
    if held.expires_at_s <= 0:
        return float("inf") if held.managed else 0.0
    life_s = max(0.0, held.expires_at_s - held.issued_at_s)
    after_s = life_s * RENEW_SHARE
    if view.times.renew_after_s > 0:
        after_s = min(after_s, view.times.renew_after_s)
    return held.issued_at_s + after_s


def due(view: View) -> Due | None:
    """Return the reason for a new token, or None."""
    held, source = view.seen.secret, view.seen.source
    if held is None or not held.usable:
        return Due.FIRST
    if not isinstance(source, Bootstrap | Managed):
        return None  # without a source no token can be created
    if source.target and held.target != source.target:
        return Due.REPLACED
    if view.seen.told and held.told and view.seen.told != held.told:
        return Due.REPLACED
    if isinstance(source, Managed):
        other = source.token is not None and source.token.serial != held.serial
        return Due.ROTATED if other else None
    if view.rejected == held.serial:
        return Due.REJECTED
    survey = _survey(view)
    if survey is not None and held.serial not in survey.bound:
        return Due.REVOKED
    return Due.EXPIRING if view.now_s >= renew_at_s(view) else None


def usable(view: View) -> bool:
    """Return whether Kueue has a token that should work, or a profile to get one by itself."""
    if _by_kueue(view):
        registered = view.seen.registered
        return registered is not None and registered.right and not registered.refusal
    held = view.seen.secret
    if held is None or not held.usable or view.rejected == held.serial:
        return False
    return held.expires_at_s <= 0 or view.now_s < held.expires_at_s


def ready(view: View) -> Minted | None:
    """Return a token that may be published now."""
    minted, source = view.minted, view.seen.source
    if minted is None or not isinstance(source, Bootstrap | Managed):
        return None
    if minted.managed != isinstance(source, Managed) or minted.target != source.target:
        return None
    if isinstance(source, Managed):
        same = source.token is not None and source.token.serial == minted.serial
        return minted if same else None
    return minted if view.now_s - minted.issued_at_s < MINTED_S else None


def orphans(view: View) -> tuple[str, ...]:
    """Return the serials of bound Secrets whose token is unused."""
    held, survey = view.seen.secret, _survey(view)
    if survey is None:
        return ()
    in_use = {held.serial} if held is not None and held.usable else set()
    if view.minted is not None:
        in_use.add(view.minted.serial)
    replaced_at_s = held.issued_at_s if held is not None else 0.0
    return tuple(
        serial
        for serial, made_at_s in sorted(survey.bound.items())
        if serial not in in_use and view.now_s - max(made_at_s, replaced_at_s) >= view.times.grace_s
    )


def _survey(view: View) -> Survey | None:
    """Return the survey of the worker, if the survey is of the current target."""
    source = view.seen.source
    survey = view.survey
    if survey is None or not isinstance(source, Bootstrap):
        return None
    return survey if survey.target == source.target else None


def _prepared(view: View) -> bool:
    survey, source = _survey(view), view.seen.source
    assert isinstance(source, Bootstrap)
    return survey is not None and survey.prepared and survey.version == source.version


def _by_bootstrap(view: View) -> bool:
    return isinstance(view.seen.source, Bootstrap)


def _by_ocm(view: View) -> bool:
    source = view.seen.source
    return isinstance(source, Managed) and not source.provider


def _by_kueue(view: View) -> bool:
    return isinstance(view.seen.source, Referenced)


def _undescribed(view: View) -> bool:
    return view.seen.undescribed is not None


def _awaits(view: View) -> bool:
    source = view.seen.source
    if not isinstance(source, Managed):
        return False
    return source.token is None or source.endpoint is None


def _unregistered(view: View) -> bool:
    registered = view.seen.registered
    return registered is None or not registered.right


def _expired(view: View) -> bool:
    held = view.seen.secret
    return held is not None and 0 < held.expires_at_s <= view.now_s


def _finished(view: View) -> bool:
    held = view.seen.secret
    return held is not None and (view.revoked or held.managed or _expired(view))


def _revocable(view: View) -> bool:
    held, way_in = view.seen.secret, view.way_in
    if way_in is None or view.revoked:
        return False
    if held is not None:
        return held.target == way_in.target
    survey = view.survey
    return survey is not None and survey.target == way_in.target and _anything(survey)


def _anything(survey: Survey) -> bool:
    return survey.account or bool(survey.bound)


def _unseen(view: View) -> bool:
    way_in, survey = view.way_in, view.survey
    return way_in is not None and (survey is None or survey.target != way_in.target)


Row = tuple[Stage, Callable[[View], bool]]

KEPT: Final[tuple[Row, ...]] = (
    (Stage.IN_THE_WAY, lambda view: bool(view.seen.foreign)),
    (Stage.NO_SOURCE, lambda view: view.seen.source is None),
    (Stage.REFUSED, lambda view: isinstance(view.seen.source, Refused)),
    (Stage.REGISTER, lambda view: _by_kueue(view) and _unregistered(view)),
    (
        Stage.EMPTY,
        lambda view: _by_kueue(view) and view.seen.secret is not None and view.seen.secret.usable,
    ),
    (Stage.HELD, _by_kueue),
    (Stage.REQUEST, lambda view: _by_ocm(view) and not view.seen.requested),
    (Stage.PUBLISH, lambda view: due(view) is not None and ready(view) is not None),
    (Stage.PREPARE, lambda view: _by_bootstrap(view) and not _prepared(view)),
    (Stage.MINT, lambda view: _by_bootstrap(view) and due(view) is not None),
    (Stage.AWAIT, lambda view: due(view) is not None and _awaits(view)),
    (Stage.ADOPT, lambda view: due(view) is not None),
    (Stage.CHECK, lambda view: _unregistered(view) and usable(view) and not view.checked_at_s),
    (Stage.REGISTER, lambda view: _unregistered(view) and usable(view)),
    (Stage.SWEEP, lambda view: bool(orphans(view))),
    (Stage.CHECK, lambda view: view.now_s >= view.checked_at_s + view.times.check_s),
    (Stage.DESCRIBE, _undescribed),
    (Stage.HELD, lambda view: True),
)

LEFT: Final[tuple[Row, ...]] = (
    (Stage.UNREGISTER, lambda view: view.seen.registered is not None),
    (Stage.RELEASE, lambda view: view.seen.asked),
    (Stage.FORGET, _finished),
    (
        Stage.EMPTY,
        lambda view: (
            view.seen.secret is not None
            and view.seen.secret.usable
            and (not _revocable(view) or view.failed_to_revoke)
        ),
    ),
    (Stage.REVOKE, _revocable),
    (Stage.LOOK, lambda view: view.seen.secret is None and _unseen(view)),
    (Stage.DESCRIBE, _undescribed),
    (Stage.LINGER, lambda view: view.seen.secret is not None),
    (Stage.NOTHING, lambda view: True),
)


def stage_of(view: View) -> Stage:
    """Return the first stage whose condition holds."""
    table = KEPT if keeps(view) else LEFT
    return next(stage for stage, holds in table if holds(view))
