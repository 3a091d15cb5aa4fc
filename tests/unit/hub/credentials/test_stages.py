"""The table, cell by cell: what must be so for each stage, and that each asks for a step."""

from typing import Any, Final

import pytest

from berthmaster.hub.credentials.core.observed import (
    Description,
    Held,
    Managed,
    Minted,
    Observed,
    Referenced,
    Refused,
    Registration,
    Survey,
    Token,
)
from berthmaster.hub.credentials.core.stages import (
    KEPT,
    LEFT,
    Due,
    Stage,
    Times,
    View,
    due,
    stage_of,
)
from berthmaster.hub.credentials.core.steps import STEPS
from tests.unit.hub.credentials.world import HERE, THERE, bootstrap

NOW: Final = 1000.0
SOURCE: Final = bootstrap()
TARGET: Final = SOURCE.target
OCM: Final = Managed(HERE, Token("ocm-1", "t", 0.0))
PLUGIN: Final = Managed(HERE, Token("provider-1", "t", 0.0), provider="secretreader")
BY_KUEUE: Final = Referenced("east", "secretreader")
OTHER_ENTRY: Final = Description("fleet", {"name": "kubeconfig-secretreader"})


def held(**more: Any) -> Held:
    base = Held(TARGET, "", "s1", NOW - 100, NOW + 900, True, False, "7", "u")
    return base._replace(**more)


def survey(**more: Any) -> Survey:
    base = Survey(TARGET, "1", {"s1": NOW - 100}, account=True, prepared=True)
    return base._replace(**more)


def view(**more: Any) -> View:
    """A cluster whose access is there, with what the test is about changed."""
    seen = Observed(
        known=True, source=SOURCE, secret=held(), registered=Registration(True, "1", "u")
    )
    told = {key: more.pop(key) for key in list(more) if key in Observed._fields}
    base = View(
        seen=seen._replace(**told),
        survey=survey(),
        checked_at_s=NOW - 1,
        way_in=SOURCE,
        now_s=NOW,
        times=Times(grace_s=60, check_s=60),
    )
    return base._replace(**more)


def minted(**more: Any) -> Minted:
    return Minted(
        **{
            "target": TARGET,
            "serial": "s2",
            "issued_at_s": NOW,
            "expires_at_s": 2000.0,
            "token": "t",
            **more,
        }
    )


KEPT_CASES: Final[dict[str, tuple[View, Stage]]] = {
    "all is well": (view(), Stage.HELD),
    "somebody else's object": (view(foreign="MultiKueueCluster east"), Stage.IN_THE_WAY),
    "nobody gave a way in": (view(source=None), Stage.NO_SOURCE),
    "a way in that is refused": (view(source=Refused("a/b", "exec", "no")), Stage.REFUSED),
    "a new life": (view(survey=None), Stage.PREPARE),
    "only looked at": (view(survey=survey(prepared=False)), Stage.PREPARE),
    "another bootstrap Secret": (view(survey=survey(version="0")), Stage.PREPARE),
    "no token yet": (view(secret=None), Stage.MINT),
    "an emptied Secret": (view(secret=held(usable=False)), Stage.MINT),
    "two thirds of its life": (view(now_s=NOW + 567), Stage.MINT),
    "what it was bound to is gone": (view(survey=survey(bound={})), Stage.MINT),
    "the worker does not know it": (view(rejected="s1"), Stage.MINT),
    "a verified token": (view(secret=None, minted=minted()), Stage.PUBLISH),
    "a token verified long ago": (
        view(secret=None, minted=minted(issued_at_s=NOW - 20)),
        Stage.MINT,
    ),
    "a token for the cluster before": (view(secret=None, minted=minted(target="x")), Stage.MINT),
    "not registered": (view(registered=None), Stage.REGISTER),
    "registered with another Secret": (
        view(registered=Registration(False, "1", "u")),
        Stage.REGISTER,
    ),
    "not registered, and not tried in this life": (
        view(registered=None, checked_at_s=0.0),
        Stage.CHECK,
    ),
    "a token that was replaced": (
        view(survey=survey(bound={"s0": NOW - 900, "s1": NOW - 100})),
        Stage.SWEEP,
    ),
    "a token that was replaced a moment ago": (
        view(
            survey=survey(bound={"s0": NOW - 900, "s1": NOW - 10}),
            secret=held(issued_at_s=NOW - 10),
        ),
        Stage.HELD,
    ),
    "a token that somebody just made": (
        view(survey=survey(bound={"s1": NOW - 100, "s2": NOW - 5})),
        Stage.HELD,
    ),
    "time to try it": (view(checked_at_s=NOW - 60), Stage.CHECK),
    "gone and still listed": (view(known=False, listed_by=("all",)), Stage.HELD),
    "OCM is not asked yet": (view(source=OCM, secret=None), Stage.REQUEST),
    "OCM has brought nothing": (
        view(source=Managed(HERE, None), secret=None, requested=True),
        Stage.AWAIT,
    ),
    "OCM has no endpoint": (
        view(source=OCM._replace(endpoint=None), secret=None, requested=True),
        Stage.AWAIT,
    ),
    "OCM has brought a token": (view(source=OCM, secret=None, requested=True), Stage.ADOPT),
    "OCM's token is there": (
        view(source=OCM, requested=True, secret=held(serial="ocm-1", managed=True)),
        Stage.HELD,
    ),
    "OCM brought a new one": (
        view(source=OCM, requested=True, secret=held(serial="ocm-0", managed=True)),
        Stage.ADOPT,
    ),
    "OCM's token was tried": (
        view(
            source=OCM,
            requested=True,
            secret=None,
            minted=minted(serial="ocm-1", managed=True, issued_at_s=0.0),
        ),
        Stage.PUBLISH,
    ),
    "a plugin has given nothing": (
        view(source=PLUGIN._replace(token=None), secret=None),
        Stage.AWAIT,
    ),
    "a plugin has given a credential": (view(source=PLUGIN, secret=None), Stage.ADOPT),
    "a plugin's credential is there": (
        view(source=PLUGIN, secret=held(serial="provider-1", managed=True)),
        Stage.HELD,
    ),
    "a plugin gave a new one": (
        view(source=PLUGIN, secret=held(serial="provider-0", managed=True)),
        Stage.ADOPT,
    ),
    "a plugin fails, and the last one is there": (
        view(
            source=PLUGIN._replace(token=None, trouble="no answer"),
            secret=held(serial="provider-0", managed=True),
        ),
        Stage.HELD,
    ),
    "Kueue shall use the profile": (
        view(source=BY_KUEUE, secret=None, registered=None),
        Stage.REGISTER,
    ),
    "Kueue used a Secret before": (view(source=BY_KUEUE), Stage.EMPTY),
    "Kueue uses the profile": (view(source=BY_KUEUE, secret=None), Stage.HELD),
    "our profile names another way": (view(undescribed=OTHER_ENTRY), Stage.DESCRIBE),
    "time to try it comes before the profile": (
        view(undescribed=OTHER_ENTRY, checked_at_s=NOW - 60),
        Stage.CHECK,
    ),
}
LEFT_CASES: Final[dict[str, tuple[View, Stage]]] = {
    "still registered": (view(), Stage.UNREGISTER),
    "OCM's objects are there": (view(registered=None, asked=True), Stage.RELEASE),
    "to be revoked": (view(registered=None), Stage.REVOKE),
    "revoked": (view(registered=None, revoked=True), Stage.FORGET),
    "out of reach": (view(registered=None, failed_to_revoke=True), Stage.EMPTY),
    "nobody has a way in": (view(registered=None, way_in=None), Stage.EMPTY),
    "emptied, out of reach": (
        view(registered=None, failed_to_revoke=True, secret=held(usable=False)),
        Stage.REVOKE,
    ),
    "emptied, no way in": (
        view(registered=None, way_in=None, secret=held(usable=False)),
        Stage.LINGER,
    ),
    "expired": (view(registered=None, way_in=None, now_s=NOW + 900), Stage.FORGET),
    "OCM's token": (view(registered=None, secret=held(managed=True)), Stage.FORGET),
    "another cluster's token": (view(registered=None, way_in=bootstrap(THERE)), Stage.EMPTY),
    "our profile still names it": (
        view(registered=None, secret=None, way_in=None, undescribed=Description("fleet", None)),
        Stage.DESCRIBE,
    ),
    "never looked at": (view(registered=None, secret=None, survey=None), Stage.LOOK),
    "something is left there": (view(registered=None, secret=None), Stage.REVOKE),
    "nothing is left": (
        view(registered=None, secret=None, survey=survey(bound={}, account=False)),
        Stage.NOTHING,
    ),
    "never anything": (view(registered=None, secret=None, survey=None, way_in=None), Stage.NOTHING),
}


@pytest.mark.parametrize("case", KEPT_CASES)
def test_a_cluster_that_is_to_have_access(case: str) -> None:
    found, stage = KEPT_CASES[case]
    assert stage_of(found) is stage


@pytest.mark.parametrize("case", LEFT_CASES)
def test_a_cluster_that_is_not(case: str) -> None:
    found, stage = LEFT_CASES[case]
    gone = found._replace(seen=found.seen._replace(known=False))
    assert stage_of(gone) is stage


def test_every_stage_is_reached_and_every_row_has_its_case() -> None:
    reached = {stage for _, stage in (*KEPT_CASES.values(), *LEFT_CASES.values())}
    assert reached == set(Stage)
    assert {stage for stage, _ in (*KEPT, *LEFT)} == set(Stage)
    assert set(STEPS) == set(Stage)


def test_every_stage_asks_for_a_step_about_its_cluster_or_waits() -> None:
    waits = {
        Stage.IN_THE_WAY,
        Stage.NO_SOURCE,
        Stage.REFUSED,
        Stage.AWAIT,
        Stage.HELD,
        Stage.LINGER,
        Stage.NOTHING,
    }
    for found, stage in (*KEPT_CASES.values(), *LEFT_CASES.values()):
        step = STEPS[stage]("east", found)
        assert (step is None) == (stage in waits)
        if step is not None:
            assert step.cluster == "east"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (view(), None),
        (view(secret=None), Due.FIRST),
        (view(source=bootstrap(THERE)), Due.REPLACED),
        (view(told="b", secret=held(told="a")), Due.REPLACED),
        (view(told="", secret=held(told="a")), None),  # it says nothing at the moment
        (view(told="b"), None),  # it said nothing when the token was made
        (view(survey=survey(bound={})), Due.REVOKED),
        (view(survey=survey(bound={}, target="x")), None),  # another cluster was asked
        (view(rejected="s1"), Due.REJECTED),
        (view(rejected="s0"), None),
        (view(now_s=NOW + 566), None),
        (view(now_s=NOW + 567), Due.EXPIRING),
        (view(times=Times(renew_after_s=99)), Due.EXPIRING),
        (view(secret=held(expires_at_s=0.0)), Due.EXPIRING),  # somebody spoiled the note
        (view(source=None, now_s=NOW + 900), None),  # due, but nobody could
    ],
)
def test_when_a_new_token_is_needed(found: View, why: Due | None) -> None:
    assert due(found) is why
