"""The step of each stage: the second half of the table in stages.py. Pure."""

from typing import Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.instructions import (
    Adopt,
    Check,
    Describe,
    Empty,
    Forget,
    Look,
    Mint,
    Prepare,
    Publish,
    Register,
    Release,
    Request,
    Revoke,
    Step,
    Sweep,
    Unregister,
)
from berthmaster.hub.credentials.core.observed import Bootstrap, Managed, Referenced
from berthmaster.hub.credentials.core.stages import Stage, View, orphans, ready


def _prepare(cluster: str, view: View) -> Step:
    assert isinstance(view.seen.source, Bootstrap)
    return Prepare(cluster, view.seen.source)


def _mint(cluster: str, view: View) -> Step:
    assert isinstance(view.seen.source, Bootstrap)
    return Mint(cluster, view.seen.source, names.serial(view.now_s))


def _publish(cluster: str, view: View) -> Step:
    minted, source = ready(view), view.seen.source
    assert minted is not None
    assert isinstance(source, Bootstrap | Managed)
    assert source.endpoint is not None
    return Publish(cluster, source.endpoint, minted, view.seen.told, view.seen.secret)


def _adopt(cluster: str, view: View) -> Step:
    source = view.seen.source
    assert isinstance(source, Managed)
    assert source.endpoint is not None
    assert source.token is not None
    return Adopt(cluster, source.endpoint, source.token)


def _sweep(cluster: str, view: View) -> Step:
    assert isinstance(view.seen.source, Bootstrap)
    return Sweep(cluster, view.seen.source, orphans(view))


def _check(cluster: str, view: View) -> Step:
    assert view.seen.secret is not None
    return Check(cluster, view.seen.secret.serial)


def _register(cluster: str, view: View) -> Step:
    source = view.seen.source
    profile = source.profile if isinstance(source, Referenced) else ""
    return Register(cluster, view.seen.registered, profile)


def _describe(cluster: str, view: View) -> Step:
    assert view.seen.undescribed is not None
    return Describe(cluster, view.seen.undescribed)


def _unregister(cluster: str, view: View) -> Step:
    assert view.seen.registered is not None
    return Unregister(cluster, view.seen.registered)


def _revoke(cluster: str, view: View) -> Step:
    assert view.way_in is not None
    return Revoke(cluster, view.way_in)


def _look(cluster: str, view: View) -> Step:
    assert view.way_in is not None
    return Look(cluster, view.way_in)


def _empty(cluster: str, view: View) -> Step:
    assert view.seen.secret is not None
    return Empty(cluster, view.seen.secret)


def _forget(cluster: str, view: View) -> Step:
    assert view.seen.secret is not None
    return Forget(cluster, view.seen.secret)


def _wait(cluster: str, view: View) -> None:
    """Return no step: the stage waits for an event or a time."""


STEPS: Final = {
    Stage.IN_THE_WAY: _wait,
    Stage.REGISTER: _register,
    Stage.NO_SOURCE: _wait,
    Stage.REFUSED: _wait,
    Stage.REQUEST: lambda cluster, view: Request(cluster),
    Stage.PUBLISH: _publish,
    Stage.PREPARE: _prepare,
    Stage.MINT: _mint,
    Stage.AWAIT: _wait,
    Stage.ADOPT: _adopt,
    Stage.SWEEP: _sweep,
    Stage.CHECK: _check,
    Stage.DESCRIBE: _describe,
    Stage.HELD: _wait,
    Stage.UNREGISTER: _unregister,
    Stage.RELEASE: lambda cluster, view: Release(cluster),
    Stage.EMPTY: _empty,
    Stage.REVOKE: _revoke,
    Stage.FORGET: _forget,
    Stage.LINGER: _wait,
    Stage.LOOK: _look,
    Stage.NOTHING: _wait,
}
