"""Addresses that a webhook may have. Pure.

The poster resolves a name once, checks each address here, and connects to a checked address. A
later answer of a name server therefore has no effect. Only `kind` knows special ranges. Example:
168.63.129.16 (Azure's host agent) and ::ffff:169.254.169.254 are `NEVER`, 10.0.0.1 and fec0::1 are
`PRIVATE`, 8.8.8.8 is `PUBLIC`.
"""

from collections.abc import Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address


class Kind(IntEnum):
    """Kind of an address. The highest kind counts, also of an embedded address."""

    PUBLIC = 0
    PRIVATE = 1  # allowed if the operator lists the host
    NEVER = 2  # not a server, or a server with a cloud's credentials


# Ranges without servers (RFC 6890 and IANA's registries), or with a path to any IPv4 address by a
# relay or translator of a private network: compatible, SIIT, local NAT64, Teredo, 6to4.
_NO_SERVER: Final = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "224.0.0.0/4"),
            *("255.255.255.255/32", "fe80::/10", "ff00::/8"),
            *("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
        ),
    )
)
# Servers of clouds for their own machines: metadata, credentials, host agents.
_CLOUDS: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
            "100.100.100.200/32",  # Alibaba
            "fd00:ec2::/32",  # Amazon
            "fd20:ce::254/128",  # Google
            "fd00:c1::a9fe:a9fe/128",  # Oracle
            "fd00:42::42/128",  # Scaleway
        ),
    )
)
# Of IPv4, and of IPv6 within 2000::/3, outside of which nothing is public (fec0::/10, fc00::/7, …).
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.2.0/24"),
            *("192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("240.0.0.0/4", "2001::/23", "2001:db8::/32", "2620:4f:8000::/48"),
            "3fff::/20",
        ),
    )
)
_GLOBAL_UNICAST: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")  # the last 32 bits are the IPv4 address
_ISATAP: Final = (0x00005EFE, 0x02005EFE)  # before the IPv4 address, in any network
_LAST_32: Final = 0xFFFFFFFF


def kind(address: Address) -> Kind:
    """Return the kind of an address, and of an embedded IPv4 address."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address == IPv6Address("::1"):
        return Kind.PRIVATE
    if any(address in one for one in (*_NO_SERVER, *_CLOUDS)):
        return Kind.NEVER
    if isinstance(address, IPv4Address):
        return Kind.PRIVATE if any(address in one for one in _NOT_PUBLIC) else Kind.PUBLIC
    outside = address in _GLOBAL_UNICAST and all(address not in one for one in _NOT_PUBLIC)
    found = Kind.PUBLIC if outside else Kind.PRIVATE
    number = int(address)
    if address in _NAT64 or number >> 32 & _LAST_32 in _ISATAP:
        return max(found, kind(IPv4Address(number & _LAST_32)))
    return found


def fault(addresses: Sequence[str], *, may_be_private: bool, in_plain_text: bool) -> str:
    """Return why no notice may be sent, or "". All addresses must be allowed."""
    if not addresses:
        return "its name has no address"
    for text in addresses:
        address = ip_address(text.partition("%")[0])
        plain = getattr(address, "ipv4_mapped", None) or address
        if in_plain_text and not plain.is_loopback:
            return "http is for this machine alone; https is right elsewhere"
        found = kind(address)
        if found is Kind.NEVER:
            return "its address is none of a server, or a cloud's own"
        if found is Kind.PRIVATE and not may_be_private:
            return "its address is a private one, and the file does not allow that for this host"
    return ""
