"""The kubelet's messages. Expected bytes are of Kubernetes' own Go types, written out by hand."""

import pytest

from berthmaster.lib.runtime.protobuf import BadMessage
from berthmaster.worker.shares.core import wire
from berthmaster.worker.shares.core.shares import Grant, Mount


def test_registration_names_version_socket_resource_and_options() -> None:
    assert wire.registration("a.sock", "x/y") == (
        b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03x/y\x22\x02\x10\x01"
    )


def test_listing_tells_the_health_of_each_device() -> None:
    assert wire.listing([("a", True), ("b", False)]) == (
        b"\x0a\x0c\x0a\x01a\x12\x07Healthy\x0a\x0e\x0a\x01b\x12\x09Unhealthy"
    )


def test_wishes_reads_each_container() -> None:
    one = b"\x0a\x01a\x0a\x01b\x12\x01a\x18\xac\x02"
    [first, second] = wire.wishes(b"\x0a" + bytes([len(one)]) + one + b"\x0a\x00")
    assert first == wire.Wish(("a", "b"), ("a",), 300)
    assert second == wire.Wish((), (), 0)


def test_allocations_and_grants_are_one_a_container() -> None:
    assert wire.allocations(b"\x0a\x06\x0a\x01a\x0a\x01b\x0a\x00") == [("a", "b"), ()]
    grant = Grant({"K": "v"}, (Mount("/i", "/o"),), ("/dev/n",))
    told = (
        b"\x0a\x06\x0a\x01K\x12\x01v"
        b"\x12\x0a\x0a\x02/i\x12\x02/o\x18\x00"
        b"\x1a\x14\x0a\x06/dev/n\x12\x06/dev/n\x1a\x02rw"
    )
    assert wire.grants([grant]) == b"\x0a" + bytes([len(told)]) + told
    assert wire.preference([("a",), ()]) == b"\x0a\x03\x0a\x01a\x0a\x00"


def test_owned_reads_the_devices_of_other_plugins() -> None:
    one = b"\x0a\x0envidia.com/gpu\x12\x05GPU-1"
    answer = b"\x0a" + bytes([len(one)]) + one + b"\x10\x03"
    assert wire.owned(answer) == [wire.Owned("nvidia.com/gpu", ("GPU-1",))]


@pytest.mark.parametrize("bad", [b"\x0a\xff", b"\x0a\x03\x0a\x01\xff", b"\xff" * 12])
def test_what_is_no_message_is_refused(bad: bytes) -> None:
    with pytest.raises(BadMessage):
        wire.allocations(bad)
