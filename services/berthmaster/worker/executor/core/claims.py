"""Devices that are had by dynamic resource allocation: the claims of pods, as documents. Pure.

Rules of this file:

- A pod gets a claim of its own, made from a ResourceClaimTemplate that is made for its Job. What
  the template says stands in an annotation of the Job as well: whoever finds a Job without its
  template makes it, so nothing has to be remembered between the two writes.
- A selector asks for an attribute only after it has asked whether the device has it: one that
  fails keeps the pod from every device.
- Of a device that several claims may have, memory is asked for; all of it where it is to be whole.
- Claims that a request names by themselves exist already, and are only referred to.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.lib.engine.fleet.shares import part_of, profile_of, sized_milli
from berthmaster.lib.jobs.pods import GPU_CLAIM, Document
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.fleet import DeviceClaim, Share
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.offers import Offers

TEMPLATES: Final = "berthmaster.io/claim-templates"  # annotation: name -> what the claims ask for
_WHOLE: Final = 1000


def of_whole(nodes: Sequence[str], pods: PodSet, claim: DeviceClaim, offers: Offers) -> Document:
    """What a claim asks for that is to have whole GPUs."""
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
    """What a claim asks for that is to have a part of a GPU."""
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
        return []  # the driver tells none; the nodes that have the model are required all the same
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
    """A string of CEL, whose escapes are those of JSON."""
    return msgspec.json.encode(text).decode()


def encode(templates: Mapping[str, Document]) -> str:
    return msgspec.json.encode(templates, order="sorted").decode()


def decode(text: str) -> dict[str, Document]:
    """What an annotation says; nothing if it says nonsense, as somebody else's words may."""
    try:
        return msgspec.json.decode(text, type=dict[str, Document])
    except UNREADABLE:
        return {}


def template(name: str, asked: Document, known: Mapping[str, str], owner: Document) -> Document:
    """The whole object. ``known``: labels of it and of its claims; ``owner``: with whose end it
    ends."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": dict(known), "ownerReferences": [owner]},
        "spec": {"metadata": {"labels": dict(known)}, "spec": asked},
    }
