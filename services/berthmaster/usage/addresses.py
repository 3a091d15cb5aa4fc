"""Which addresses may be spoken to for a webhook. Pure.

A name is resolved once, what comes of it is judged here, and the connection goes to just that
address: so no later answer of a name server leads elsewhere.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

# IPv6 addresses that carry an IPv4 one, which a gateway on the way may take out of them.
_CARRIERS: Final = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96")))


def fault(addresses: Sequence[str], *, may_be_private: bool, in_plain_text: bool) -> str:
    """Why nothing is sent there; "" = it may be. Of several addresses each has to be right."""
    if not addresses:
        return "its name has no address"
    for text in addresses:
        address = ip_address(text.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if in_plain_text and not address.is_loopback:
            return "http is for this machine alone; https is right elsewhere"
        if address.is_multicast or address.is_unspecified or address.is_link_local:
            return "its address is none of a server"
        if not may_be_private and not _is_public(address):
            return "its address is a private one, and the file does not allow that for this host"
    return ""


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and any(address in one for one in _CARRIERS):
        return False
    return address.is_global
