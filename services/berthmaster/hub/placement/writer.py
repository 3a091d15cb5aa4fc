"""Performs the writes of one evaluation of a Placement, in order, until the first failure.

Every write names the resource version of its decision. A conflict is expected: another client wrote
first, and the evaluator runs again. The writer passes each response to the evaluator at once,
because responses are newer than the mirrors.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from berthmaster.hub.placement.core.evaluator import Evaluator
from berthmaster.hub.placement.core.instructions import (
    DropPage,
    DropSlice,
    PutPage,
    PutSlice,
    PutStatus,
    WriteDecisions,
)
from berthmaster.hub.placement.core.objects import MANAGED_BY, OURS, Placement, PlacementDecision
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Declined
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import AlreadyExists, NotFound
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.multicluster import DecisionSlice
from berthmaster.lib.kube.objects import Metadata, Object
from berthmaster.lib.kube.resources import DECISION_SLICES, PLACEMENT_DECISIONS, PLACEMENTS

MANAGER: Final = "berthmaster-placement"


class PlacementWriter(Writer[WriteDecisions]):
    def __init__(self, client: Client, core: Evaluator) -> None:
        super().__init__(client)
        self._core = core

    def right(self, write: WriteDecisions) -> Hashable:
        is_of_slices = any(isinstance(one, PutSlice) for one in write.writes)
        return write.placement[0], is_of_slices

    async def write(self, write: WriteDecisions) -> Answer:
        for one in write.writes:
            match one:
                case PutPage():
                    await self._put(write.placement, one)
                case DropPage():
                    await self._drop(write.placement, one)
                case PutStatus():
                    await self._status(write.placement, one)
                case PutSlice():
                    await self._put_slice(write.placement, one)
                case DropSlice():
                    await self._drop_slice(write.placement, one)
        return Answer()

    async def _put(self, key: Key, page: PutPage) -> None:
        namespace = key[0]
        path = PLACEMENT_DECISIONS.path(namespace=namespace, name=page.name)
        present = page.present
        try:
            made = present is None
            if present is None:
                present = await self._made(namespace, page)
            if page.status is not None:
                status = f"{path}/status"
                present = await self._patched(status, {"status": page.status}, present)
            if page.metadata is not None and not made:
                await self._patched(path, {"metadata": page.metadata}, present)
        except NotFound:
            self._core.on_deleted((namespace, page.name))  # the mirror reports the deletion later
            raise

    async def _made(self, namespace: str, page: PutPage) -> Metadata:
        body = {
            "apiVersion": PLACEMENT_DECISIONS.group_version,
            "kind": PLACEMENT_DECISIONS.kind,
            "metadata": {"name": page.name, "namespace": namespace, **(page.metadata or {})},
        }
        collection = PLACEMENT_DECISIONS.path(namespace=namespace)
        try:
            made = await self.client.create(
                collection, body, PlacementDecision, field_manager=MANAGER
            )
        except AlreadyExists:
            # The page has no owner, or is not mirrored yet. The name belongs to the Placement.
            path = PLACEMENT_DECISIONS.path(namespace=namespace, name=page.name)
            found = await self.client.get(path, PlacementDecision)
            return await self._patched(path, {"metadata": page.metadata}, found.metadata)
        self._core.on_seen(made)
        return made.metadata

    async def _patched(self, path: str, body: Mapping[str, Any], present: Metadata) -> Metadata:
        answer = await self.client.merge_patch(
            path,
            body,
            PlacementDecision,
            resource_version=present.resource_version,
            field_manager=MANAGER,
        )
        self._core.on_seen(answer)
        return answer.metadata

    async def _drop(self, key: Key, page: DropPage) -> None:
        path = PLACEMENT_DECISIONS.path(namespace=key[0], name=page.name)
        await self.client.delete(
            path, uid=page.present.uid, resource_version=page.present.resource_version
        )
        self._core.on_deleted((key[0], page.name))

    async def _status(self, key: Key, write: PutStatus) -> None:
        path = PLACEMENTS.path(namespace=key[0], name=key[1], subresource="status")
        answer = await self.client.merge_patch(
            path,
            {"status": write.status},
            Placement,
            resource_version=write.present.resource_version,
            field_manager=MANAGER,
        )
        self._core.on_status(answer)

    async def _put_slice(self, key: Key, one: PutSlice) -> None:
        path = DECISION_SLICES.path(namespace=key[0], name=one.name)
        if one.present is not None:
            answer = await self.client.merge_patch(
                path,
                one.body,
                DecisionSlice,
                resource_version=one.present.resource_version,
                field_manager=MANAGER,
            )
            self._core.on_slice(answer)
            return
        body = {
            "apiVersion": DECISION_SLICES.group_version,
            "kind": DECISION_SLICES.kind,
            **one.body,
            "metadata": {"name": one.name, "namespace": key[0], **one.body["metadata"]},
        }
        try:
            collection = DECISION_SLICES.path(namespace=key[0])
            made = await self.client.create(collection, body, DecisionSlice, field_manager=MANAGER)
        except AlreadyExists:
            found = await self.client.get(path, Object)
            if found.metadata.labels.get(MANAGED_BY) == OURS:
                raise  # the mirror lags behind
            raise Declined(
                f"PlacementDecision {key[0]}/{one.name} is there already and is not ours"
            ) from None
        self._core.on_slice(made)

    async def _drop_slice(self, key: Key, one: DropSlice) -> None:
        path = DECISION_SLICES.path(namespace=key[0], name=one.name)
        await self.client.delete(
            path, uid=one.present.uid, resource_version=one.present.resource_version
        )
        self._core.on_slice_deleted(key[0], one)
