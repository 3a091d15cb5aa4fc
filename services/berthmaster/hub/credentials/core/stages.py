"""Where a cluster's credentials stand and what comes next, as a table. Pure.

Rules of this file:

- A stage is what is true of both sides now, never what we remember having done: whoever starts
  anew, or takes over, finds the same stage and goes on from there.
- A row is (stage, condition); the first row whose condition holds is the stage. There are two
  tables: for a cluster that is to have access, and for one that is not.
- A cluster that is gone and is still listed by a MultiKueueConfig keeps its access, renewals and
  all, until it is drained: taking it away would run jobs twice.
- A new token is published before the old one's bound Secret is deleted, and that one is deleted
  only ``grace_s`` later: whoever read the old token a moment ago must be able to finish.
- Nothing is registered with Kueue whose token was not tried in this life.
- A token that is not yet published is not older than ``MINTED_S``: by then whoever else leads may
  have taken its bound Secret for an orphan.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Managed,
    Minted,
    Observed,
    Refused,
    Survey,
)

MINTED_S: Final = 20.0
RENEW_SHARE: Final = 2 / 3  # of a token's life; the kubelet renews at 80 %


class Stage(Enum):
    """Where one cluster stands."""

    # It is to have access.
    IN_THE_WAY = "InTheWay"  # an object of somebody else's stands where ours should
    REGISTER = "Registering"
    NO_SOURCE = "NoSource"  # nobody gave us a way in
    REFUSED = "Refused"  # the way that was given is not one that we take
    PUBLISH = "Publishing"
    PREPARE = "Preparing"
    MINT = "Minting"
    REQUEST = "Requesting"  # of OCM
    AWAIT = "AwaitingToken"  # of OCM
    ADOPT = "Adopting"  # OCM's token
    SWEEP = "Sweeping"
    CHECK = "Checking"
    HELD = "Held"
    # It is not.
    UNREGISTER = "Unregistering"
    RELEASE = "Releasing"  # OCM's objects
    EMPTY = "Emptying"  # the hub's Secret, as the worker cannot be reached
    REVOKE = "Revoking"
    FORGET = "Forgetting"
    LINGER = "Lingering"  # a token that nobody can revoke runs out by itself
    LOOK = "Looking"
    NOTHING = "Nothing"


class Due(Enum):
    """Why a new token is needed."""

    FIRST = "there is none"
    REPLACED = "the cluster was replaced"
    REVOKED = "what it was bound to is gone"
    REJECTED = "the worker does not know it any more"
    EXPIRING = "it is to be renewed"
    ROTATED = "OCM brought a new one"


CHECK_S: Final = 60.0


class Times(NamedTuple):
    """What stages depend on, in seconds."""

    renew_after_s: float = 0.0  # 0 = by RENEW_SHARE alone
    grace_s: float = 60.0
    check_s: float = CHECK_S  # between two real calls with each token that Kueue has


class View(NamedTuple):
    """One cluster: what the hub says, and what this process found out since it started."""

    seen: Observed
    survey: Survey | None = None
    minted: Minted | None = None
    rejected: str = ""  # the serial that the worker did not know
    checked_at_s: float = 0.0
    revoked: bool = False  # by us, in this life
    failed_to_revoke: bool = False
    way_in: Bootstrap | None = None  # the last that was there: to revoke by
    now_s: float = 0.0
    times: Times = Times()


def keeps(view: View) -> bool:
    """Whether it is to have access."""
    return view.seen.known or bool(view.seen.listed_by)


def renew_at_s(view: View) -> float:
    """When the token that Kueue has is to be renewed."""
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
    """Why a new token is needed, or None."""
    held, source = view.seen.secret, view.seen.source
    if held is None or not held.usable:
        return Due.FIRST
    if not isinstance(source, Bootstrap | Managed):
        return None  # nothing could be done about it
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
    """Whether Kueue has a token that should work."""
    held = view.seen.secret
    if held is None or not held.usable or view.rejected == held.serial:
        return False
    return held.expires_at_s <= 0 or view.now_s < held.expires_at_s


def ready(view: View) -> Minted | None:
    """A token that may be published now."""
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
    """Serials of bound Secrets whose token nobody uses any more."""
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
    """What is known of the worker, if it is the one that is meant now."""
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
    return isinstance(view.seen.source, Managed)


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
    (Stage.LINGER, lambda view: view.seen.secret is not None),
    (Stage.LOOK, _unseen),
    (Stage.NOTHING, lambda view: True),
)


def stage_of(view: View) -> Stage:
    """The first row that holds."""
    table = KEPT if keeps(view) else LEFT
    return next(stage for stage, holds in table if holds(view))
