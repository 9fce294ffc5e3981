# SPDX-License-Identifier: Apache-2.0
"""Addresses and networks as the configuration writes them: `host:port`, an IPv6 host in square brackets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_IPV4_MAPPED_BITS = 96  # the bits of an IPv6 address that say that it stands for an IPv4 one

_LONGEST_LABEL = 63  # RFC 1035; resolving a longer or an empty one raises UnicodeError instead of OSError


@dataclass(frozen=True, slots=True)
class Address:
    """A host (a name, an IPv4 address, or an IPv6 address without brackets) and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port`; ValueError with a sentence for any other text. Port 0 means any free port."""
        match = _HOST_AND_PORT.fullmatch(text)
        if match is None:
            raise ValueError(f"must be host:port, not {text!r}")
        if (ipv6 := match["ipv6"]) is not None:
            try:
                ipaddress.IPv6Address(ipv6)
            except ValueError:
                raise ValueError(f"must have an IPv6 address in its brackets, not {text!r}") from None
        port = int(match["port"])
        if port > 65535:
            raise ValueError(f"has port {port}, which is greater than 65535")
        host = ipv6 or match["host"]
        if ipv6 is None and not all(1 <= len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split(".")):
            raise ValueError(f"must have a host name of parts of 1 to {_LONGEST_LABEL} characters, not {text!r}")
        return cls(host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost counts as one that others can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.casefold() == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Network:
    """A network of IP addresses, or a single address. An IPv4 address in IPv6 form counts as that IPv4 address."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read `10.0.0.0/8` or `10.0.0.1`; ValueError with a sentence for any other text."""
        try:
            interface = ipaddress.ip_interface(text)
        except ValueError:
            raise ValueError(f"must be a network such as 10.0.0.0/8, or an IP address, not {text!r}") from None
        network = interface.network
        if interface.ip != network.network_address:
            raise ValueError(f"has bits behind its prefix: write {network}, not {text!r}")
        if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _IPV4_MAPPED_BITS:
            mapped = network.network_address.ipv4_mapped
            if mapped is not None:
                network = ipaddress.IPv4Network((mapped, network.prefixlen - _IPV4_MAPPED_BITS))
        return cls(network)

    def __contains__(self, address: IPAddress) -> bool:
        return address in self.network

    def __str__(self) -> str:
        return str(self.network)


@lru_cache(maxsize=1024)
def numeric_address(host: str) -> IPAddress | None:
    """Read an IP address, also an IPv4 one in IPv6 form; None where `host` is a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
