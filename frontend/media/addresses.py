"""Addresses: decides whether the server may connect to an IP address that a client's URL leads to.

Public addresses only: others belong to the operator's network, where a URL of a client could read from services that trust
their neighbours (server-side request forgery), or from a cloud's metadata service. Networks that the operator names are exempt.
"""

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Addresses of clouds' own services that some versions of Python count as public: Azure's wire server, and Oracle's metadata.
_SERVICES = tuple(map(ipaddress.IPv4Network, ("168.63.129.16/32", "192.0.0.0/24")))
# NAT64: these addresses reach the IPv4 address in their last 32 bits. Networks' own prefixes (64:ff9b:1::/48) may have it in
# other bits, and are no public addresses.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# All public IPv6 addresses are in here; some versions of Python count further ones as public, such as fec0::/10.
_UNICAST = ipaddress.IPv6Network("2000::/3")


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks in CIDR notation; ValueError for another text, or a network with bits behind its prefix."""
    return tuple(map(ipaddress.ip_network, texts))


def may_connect(text: str, exempt: Sequence[Network]) -> bool:
    """Return whether the server may connect to an address.

    Args:
        text: an IP address, in IPv6 possibly with a zone.
        exempt: networks that are allowed although they are not public.
    """
    try:
        address = _embedded(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if any(address in network for network in exempt if network.version == address.version):
        return True
    is_public = address.is_global and not address.is_multicast and not address.is_reserved
    if isinstance(address, ipaddress.IPv6Address):
        return is_public and address in _UNICAST
    return is_public and not any(address in network for network in _SERVICES)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to; other addresses unchanged."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    tunnel = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or tunnel or address
