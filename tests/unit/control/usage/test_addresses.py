"""What each special range is, however an address is written."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.usage.core.addresses import Kind, fault, kind

METADATA = [
    *("169.254.169.254", "169.254.170.2", "168.63.129.16", "192.0.0.192", "100.100.100.200"),
    *("0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "192.0.0.170"),
]
INSIDE = [
    *("10.1.2.3", "172.31.0.1", "192.168.1.1", "127.0.0.1", "127.8.9.1", "100.64.0.1"),
    *("198.18.0.1", "198.19.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.1", "240.0.0.1"),
    *("192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1"),
]
OUTSIDE = ["8.8.8.8", "168.63.129.15", "168.63.129.17", "192.0.1.1", "172.32.0.1", "100.128.0.1"]


def judged(text: str) -> list[str]:
    """IPv6 forms of an IPv4 address that are judged by it: mapped, NAT64, ISATAP."""
    high, low = f"{int(IPv4Address(text)):08x}"[:4], f"{int(IPv4Address(text)):08x}"[4:]
    isatap = [f"2600:1::5efe:{high}:{low}", f"2600:1::200:5efe:{high}:{low}"]
    return [f"::ffff:{text}", f"64:ff9b::{text}", *isatap]


def refused(text: str) -> list[str]:
    """Forms that lead to it by relays: compatible, SIIT, local NAT64, 6to4, Teredo."""
    number = int(IPv4Address(text))
    high, low, turned = number >> 16, number & 0xFFFF, number ^ 0xFFFFFFFF
    return [
        *(f"::{text}", f"::ffff:0:{text}", f"64:ff9b:1::{text}", f"2002:{high:x}:{low:x}::1"),
        *(
            f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",
            f"2001:0:{high:x}:{low:x}::1",
        ),
        f"2001::{turned >> 16:x}:{turned & 0xFFFF:x}",
    ]


@pytest.mark.parametrize("text", METADATA)
def test_address_of_no_server_is_never_allowed_in_any_form(text: str) -> None:
    assert kind(ip_address(text)) is Kind.NEVER
    for each in (*judged(text), *refused(text)):
        assert (each, kind(ip_address(each))) == (each, Kind.NEVER)
        assert fault([each], may_be_private=True, in_plain_text=False) != ""


@pytest.mark.parametrize("text", INSIDE)
def test_private_address_is_private_in_any_form(text: str) -> None:
    assert kind(ip_address(text)) is Kind.PRIVATE
    assert [kind(ip_address(each)) for each in judged(text)] == [Kind.PRIVATE] * 4
    assert {kind(ip_address(each)) for each in refused(text)} == {Kind.NEVER}


@pytest.mark.parametrize("text", OUTSIDE)
def test_public_address_is_public_and_its_relays_are_not(text: str) -> None:
    assert kind(ip_address(text)) is Kind.PUBLIC
    kinds = [kind(ip_address(each)) for each in judged(text)]
    assert kinds == [Kind.PUBLIC, Kind.PRIVATE, Kind.PUBLIC, Kind.PUBLIC]
    assert {kind(ip_address(each)) for each in refused(text)} == {Kind.NEVER}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        *((text, Kind.NEVER) for text in ("::", "fe80::1", "febf::1", "ff02::1", "fd00:ec2::254")),
        *((text, Kind.NEVER) for text in ("fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42")),
        *((text, Kind.PRIVATE) for text in ("::1", "fc00::1", "fd12::1", "fec0::1", "feff::1")),
        *((text, Kind.PRIVATE) for text in ("100::1", "2001:db8::1", "2001:2::1", "2001:10::1")),
        *((text, Kind.PRIVATE) for text in ("2001:20::1", "3fff::1", "5f00::1", "4000::1", "1::1")),
        *((text, Kind.PRIVATE) for text in ("2620:4f:8000::1", "2001:1::1", "2001:30::1")),
        *((text, Kind.PUBLIC) for text in ("2600::1", "2001:4860:4860::8888", "2a00::1")),
    ],
)
def test_ipv6_address_is_of_its_range(text: str, right: Kind) -> None:
    assert kind(ip_address(text)) is right


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_address_that_python_calls_special_is_never_public(
    address: IPv4Address | IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert kind(address) is not Kind.PUBLIC
    if isinstance(address, IPv6Address) and address not in ip_network("2000::/3"):
        plain = address.ipv4_mapped
        assert kind(address) is not Kind.PUBLIC or plain is not None
