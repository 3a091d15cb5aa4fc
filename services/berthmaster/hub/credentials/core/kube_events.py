"""Kubernetes Events about a cluster's credentials, on the object that operators inspect.

Pure. A message states the problem, the reason, and the action for the operator. A message contains
no token and no Secret data.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.errors import HasAnotherName, NotOurs, StillListed
from berthmaster.hub.credentials.core.index import PROVIDER_SERIAL
from berthmaster.hub.credentials.core.instructions import Forget, Publish, Step
from berthmaster.hub.credentials.core.observed import Managed, Referenced, Refused
from berthmaster.hub.credentials.core.stages import Stage, View, usable
from berthmaster.lib.kube.controller.shell_contract import Answer

PATIENCE_S: Final = 30.0  # seconds to wait for OCM's addon before an event
_WHAT: Final[Mapping[str, str]] = {
    "Prepare": "account and rights cannot be made in the worker",
    "Look": "the worker cannot be asked what of ours it has",
    "Mint": "no token can be had",
    "Publish": "the Secret for Kueue cannot be written",
    "Register": "the MultiKueueCluster cannot be made",
    "Sweep": "tokens that were replaced cannot be revoked",
    "Check": "the token that Kueue has does not work",
    "Request": "OCM cannot be asked for an account",
    "Adopt": "the token that was brought for it does not work",
    "Describe": "the access provider of its ClusterProfile cannot be written",
    "Unregister": "the MultiKueueCluster cannot be deleted",
    "Revoke": "what is in the worker cannot be revoked",
    "Release": "OCM's objects cannot be deleted",
    "Empty": "the Secret for Kueue cannot be emptied",
    "Forget": "the Secret for Kueue cannot be deleted",
}


_REASONS: Final[Mapping[str, str]] = {
    NotOurs.__name__: "CredentialsNotOurs",
    HasAnotherName.__name__: "ClusterHasAnotherName",
    StillListed.__name__: "CredentialsDraining",
}


class Notice(NamedTuple):
    """An Event on a cluster, before the object is known."""

    warning: bool
    reason: str
    note: str


def published(asked: Publish, first: bool) -> Notice:
    """Return the event of a published token."""
    reason = "CredentialsIssued" if first else "CredentialsRotated"
    how = "verified"
    if asked.minted.managed:
        by_plugin = asked.minted.serial.startswith(PROVIDER_SERIAL)
        how = "by an access provider" if by_plugin else "by OCM"
    return Notice(False, reason, f"token {asked.minted.serial}, {how}")


def forgotten(asked: Forget, now_s: float) -> Notice:
    """Return the event after the cluster's last object on the hub is deleted."""
    return Notice(False, "CredentialsRevoked", "Kueue's access to it is gone")


def failed(asked: Step, answer: Answer, view: View) -> Notice:
    what = _WHAT[type(asked).__name__]
    reason = _REASONS.get(answer.reason)
    note = f"{what}: {answer.why}"
    if reason is None:
        held = view.seen.secret
        renews = held is not None and held.usable
        reason = "CredentialsRotationFailed" if renews else "CredentialsFailed"
        if renews and usable(view) and held is not None and held.expires_at_s:
            left_s = max(0.0, held.expires_at_s - view.now_s)
            note += f"; the token that Kueue has works for another {left_s:.0f} s"
    return Notice(True, reason, note)


def standing(stage: Stage, view: View, since_s: float) -> Notice | None:
    """Return the event of a stage that waits for an operator or another service."""
    source, held = view.seen.source, view.seen.secret

    def told(reason: str, note: str) -> Notice:
        return Notice(True, reason, note)

    match stage:
        case Stage.IN_THE_WAY:
            note = f"{view.seen.foreign} is there already and is not ours: nothing is written"
            return told("CredentialsNotOurs", note)
        case Stage.NO_SOURCE:
            way = "what Kueue has is not renewed" if held is not None else "no access can be made"
            return told(
                "NoBootstrapSecret",
                f"{way}: no Secret with the label {names.BOOTSTRAP} is for this cluster",
            )
        case Stage.REFUSED if isinstance(source, Refused):
            return told(source.reason, f"{source.where}: {source.field}: {source.why}")
        case Stage.AWAIT if isinstance(source, Managed) and (
            source.trouble or since_s >= PATIENCE_S
        ):
            if source.provider:
                why = source.trouble or "its plugin has not answered"
                note = f"access provider {source.provider} has given no credential: {why}"
                return told("AwaitingToken", note)
            why = source.trouble or "is the addon managed-serviceaccount enabled in this cluster?"
            return told("AwaitingToken", f"OCM has not brought a token: {why}")
        case Stage.HELD if isinstance(source, Managed) and source.provider and source.trouble:
            return told(
                "CredentialsRotationFailed",
                f"access provider {source.provider} gives no credential: {source.trouble}; Kueue "
                "keeps the one that it has",
            )
        case Stage.HELD if (
            isinstance(source, Referenced) and (held_by := view.seen.registered) and held_by.refusal
        ):
            return told(
                "ProfileRefused",
                f"Kueue does not use ClusterProfile {source.profile}: {held_by.refusal}",
            )
        case Stage.LINGER:
            return told(
                "CredentialsLinger",
                "nobody can revoke its last token, which is out of Kueue's reach and expires by "
                "itself; a bootstrap Secret for it would let it be revoked at once",
            )
        case _:
            if not view.seen.known and view.seen.listed_by:
                configs = ", ".join(view.seen.listed_by)[:300]
                return told(
                    "CredentialsDraining",
                    f"it is gone or no longer selected, and MultiKueueConfig {configs} still lists "
                    "it: its access stays until it is drained and taken out there",
                )
            return None
