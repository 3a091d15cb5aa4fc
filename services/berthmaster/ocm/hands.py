"""Carries out the cores' writes, each with the resource version of what was looked at.

JSON merge patches of a status, or of a spec: they work whether a schema calls a list a map or not,
and leave no field owned by a manager whom nobody asks any more. On a conflict what the server has
is read and the core decides anew.
"""

from typing import Any, Final, assert_never

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    KubernetesError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_CLAIMS,
    CLUSTER_PROFILES,
    Resource,
)
from berthmaster.ocm.objects import (
    CLUSTER_MANAGER,
    FIELD_MANAGER,
    FRESH,
    MANAGED_BY,
    OURS,
    ClusterClaim,
    ClusterProfile,
    PlacementScore,
)
from berthmaster.ocm.words import (
    CLAIM,
    PROFILE,
    SCORE,
    CreateClaim,
    CreateProfile,
    CreateScore,
    Done,
    Key,
    Outcome,
    Write,
    WriteClaim,
    WriteProperties,
    WriteScore,
)

MAX_WHY_CHARS: Final = 500
_KINDS: Final[dict[str, tuple[Resource, type[Object]]]] = {
    SCORE: (ADD_ON_PLACEMENT_SCORES, PlacementScore),
    PROFILE: (CLUSTER_PROFILES, ClusterProfile),
    CLAIM: (CLUSTER_CLAIMS, ClusterClaim),
}


class Hands:
    """Writes to one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def carry_out(self, write: Write) -> Done:
        """Do it; what became of it."""
        key = write.key
        try:
            try:
                return Done(key=key, outcome="stored", thing=await self._do(write))
            except (AlreadyExists, Conflict) as error:
                return Done(
                    key=key, outcome="conflict", thing=await self._read(key), why=_why(error)
                )
            except NotFound as error:
                if isinstance(write, CreateScore | CreateProfile | CreateClaim):
                    return Done(key=key, outcome="missing", why=_why(error))
                return Done(key=key, outcome="conflict", why=_why(error))  # it is gone
        except KubernetesError as error:
            return Done(key=key, outcome=outcome_of(error), why=_why(error))

    async def _read(self, key: Key) -> Object | None:
        resource, kind = _KINDS[key[0]]
        try:
            return await self._client.get(resource.path(namespace=key[1], name=key[2]), kind)
        except NotFound:
            return None

    async def _do(self, write: Write) -> Object:
        resource, kind = _KINDS[write.key[0]]
        _, namespace, name = write.key
        if isinstance(write, CreateScore | CreateProfile | CreateClaim):
            body = {
                "apiVersion": resource.group_version,
                "kind": resource.kind,
                **_new(write, namespace, name),
            }
            path = resource.path(namespace=namespace)
            return await self._client.create(path, body, kind, field_manager=FIELD_MANAGER)
        part = "" if isinstance(write, WriteClaim) else "status"
        return await self._client.merge_patch(
            resource.path(namespace=namespace, name=name, subresource=part),
            changed(write),
            kind,
            resource_version=write.resource_version,
            field_manager=FIELD_MANAGER,
        )


def _new(
    write: CreateScore | CreateProfile | CreateClaim, namespace: str, name: str
) -> dict[str, Any]:
    labels = {MANAGED_BY: OURS}
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        metadata["namespace"] = namespace
    match write:
        case CreateScore():
            return {"metadata": metadata}
        case CreateProfile():
            labels[CLUSTER_MANAGER] = write.manager
            spec = {"clusterManager": {"name": write.manager}, "displayName": name}
            return {"metadata": metadata, "spec": spec}
        case CreateClaim():
            return {"metadata": metadata, "spec": {"value": write.value}}
        case _:
            assert_never(write)


def changed(write: WriteScore | WriteProperties | WriteClaim) -> dict[str, Any]:
    """The fields that a patch changes."""
    match write:
        case WriteScore():
            fresh = {
                "type": FRESH,
                "status": write.status,
                "reason": write.reason,
                "message": write.message,
                "lastTransitionTime": write.since,
            }
            scores = [{"name": name, "value": value} for name, value in write.scores.items()]
            status = {
                "scores": scores,
                "validUntil": write.valid_until,
                "conditions": [*write.others, fresh],
            }
            return {"status": status}
        case WriteProperties():
            return {"status": {"properties": write.properties}}
        case WriteClaim():
            return {"spec": {"value": write.value}}
        case _:
            assert_never(write)


def outcome_of(error: KubernetesError) -> Outcome:
    """What a failure means for the next try."""
    if isinstance(error, Forbidden | Unauthorized):
        return "denied"
    if isinstance(error, NotFound):
        return "missing"
    if isinstance(error, Invalid):
        return "refused"
    if isinstance(error, ApiError) and not isinstance(error, ServerError | TooManyRequests):
        return "refused"
    return "away"


def _why(error: KubernetesError) -> str:
    return str(error)[:MAX_WHY_CHARS]
