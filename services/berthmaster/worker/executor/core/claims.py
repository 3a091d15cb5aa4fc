"""ResourceClaims for pods (dynamic resource allocation), as documents. Pure.

Example: a pod with two A100 gets a claim with ``count: 2`` and a selector on the driver's attribute
productName.

Rules of this file:

- Each pod gets a claim of its own from a ResourceClaimTemplate created for its Job. An annotation
  of the Job has the content of the template, so a Job without its template gets it later, and
  nothing needs to be remembered between the two writes.
- A selector checks that an attribute exists before it compares the value, because an error in a
  selector excludes the pod from every device.
- For a device shared by several claims the claim requests memory: all of it for a whole device.
- Claims named by the request exist already and are only referenced.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.lib.engine.fleet.shares import part_of, profile_of, sized_milli
from berthmaster.lib.jobs.pods import GPU_CLAIM, Document
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.fleet import DeviceClaim, Share
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.affinity import Offers

TEMPLATES: Final = "berthmaster.io/claim-templates"  # annotation: name -> content of the claims
_WHOLE: Final = 1000


def of_whole(nodes: Sequence[str], pods: PodSet, claim: DeviceClaim, offers: Offers) -> Document:
    """Return the claim for whole GPUs."""
    asked = _request(claim, pods.gpus, _model_selectors(pods, claim, offers))
    if claim.divisible:
        memory_mib = offers.usual_memory_mib(nodes, pods)
        asked["selectors"] = [
            *asked.get("selectors", ()),
            _cel(
                _capacity_is(claim, "memory", ">=", memory_mib),
                _capacity_is(claim, "memory", "<", memory_mib + 1),
            ),
        ]
        asked["capacity"] = {"requests": {"memory": f"{memory_mib}Mi"}}
    elif pods.gpu_memory_mib:
        least = _cel(_capacity_is(claim, "memory", ">=", pods.gpu_memory_mib))
        asked["selectors"] = [*asked.get("selectors", ()), least]
    return _devices(asked)


def of_part(nodes: Sequence[str], pods: PodSet, share: Share, offers: Offers) -> Document:
    """Return the claim for a GPU fraction."""
    claim = share.claim
    assert claim is not None
    if not claim.divisible:
        profile = profile_of(share)
        attribute = f"device.attributes[{_text(claim.driver)}]"
        slice_of = _cel(f'"profile" in {attribute} && {attribute}.profile == {_text(profile)}')
        return _devices(_request(claim, 1, [slice_of]))
    memories_mib = offers.memories_mib(nodes)
    milli = min(_WHOLE, sized_milli(part_of(pods), min(memories_mib, default=0)))
    of_card_mib = -(-milli * max(memories_mib, default=0) // _WHOLE)
    asked = _request(claim, 1, _model_selectors(pods, claim, offers))
    asked["capacity"] = {"requests": {"memory": f"{max(pods.gpu_memory_mib, of_card_mib, 1)}Mi"}}
    return _devices(asked)


def _model_selectors(pods: PodSet, claim: DeviceClaim, offers: Offers) -> list[Document]:
    if not pods.gpu_models:
        return []
    products = offers.products(pods, claim.driver)
    if not products:
        return []  # unknown to the driver; nodes with the model are required anyway
    attribute = f"device.attributes[{_text(claim.driver)}]"
    named = ", ".join(_text(product) for product in products)
    return [_cel(f'"productName" in {attribute} && {attribute}.productName in [{named}]')]


def _request(claim: DeviceClaim, count: int, selectors: Sequence[Document]) -> Document:
    asked: Document = {"deviceClassName": claim.device_class, "count": count}
    if selectors:
        asked["selectors"] = list(selectors)
    return asked


def _devices(asked: Document) -> Document:
    return {"devices": {"requests": [{"name": GPU_CLAIM, "exactly": asked}]}}


def _capacity_is(claim: DeviceClaim, name: str, how: str, mib: int) -> str:
    capacity = f"device.capacity[{_text(claim.driver)}]"
    return (
        f'{_text(name)} in {capacity} && {capacity}.{name}.compareTo(quantity("{mib}Mi")) {how} 0'
    )


def _cel(*conditions: str) -> Document:
    return {"cel": {"expression": " && ".join(conditions)}}


def _text(text: str) -> str:
    """Return a CEL string literal, with JSON's escapes."""
    return msgspec.json.encode(text).decode()


def encode(templates: Mapping[str, Document]) -> str:
    return msgspec.json.encode(templates, order="sorted").decode()


def decode(text: str) -> dict[str, Document]:
    """Return the content of an annotation; empty if malformed."""
    try:
        return msgspec.json.decode(text, type=dict[str, Document])
    except UNREADABLE:
        return {}


def template(name: str, asked: Document, known: Mapping[str, str], owner: Document) -> Document:
    """Return the template. ``known``: labels of the template and its claims. ``owner``: object that
    owns it.
    """
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": dict(known), "ownerReferences": [owner]},
        "spec": {"metadata": {"labels": dict(known)}, "spec": asked},
    }
