"""Decide which hosts and addresses a sandboxed program may reach; nothing here opens a connection."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from yarl import URL

from kingdom.errors import KingdomError

HTTPS_PORT = 443
_WILDCARD = "*."
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_NAME_MAX = 253
# If the last label is a number, resolvers treat the name as an address: 127.1, 0x7f000001.
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_CONNECT = re.compile(rb"CONNECT (?P<host>[!-~]{1,300}):(?P<port>\d{1,5}) HTTP/1\.[01]")

# The assigned public IPv6 range. Addresses that embed an IPv4 address lie outside of it, except 6to4.
_PUBLIC_V6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_BLOCKED = (
    # 6to4, its relays, and ranges for protocols and documentation. Some versions of Python call them global.
    *map(ip_network, ("2002::/16", "192.88.99.0/24", "192.0.0.0/24", "2001::/23", "3fff::/20")),
    # The Azure metadata service, which hands out credentials of the machine.
    ip_network("168.63.129.16/32"),
)


class EgressRefused(KingdomError):
    """Raised when a program may not reach a host; the message is the reason."""

    code = "egress_refused"


def canonical_name(text: str) -> str | None:
    """Return a host name in lower case without a final dot, or None if it is an address or not a full name."""
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    is_name = len(labels) > 1 and len(name) <= _NAME_MAX and all(map(_LABEL.fullmatch, labels))
    return name if is_name and not _NUMBER.fullmatch(labels[-1]) else None


def parse_allowed_name(text: str) -> str:
    """Return the canonical form of an entry of `soldiers.egress`; raises ValueError with the reason if invalid."""
    if text.strip() in {"*", "*.", ""}:
        raise ValueError(f"{text!r} would allow every host: name the hosts that builds need")
    if _is_address(text):
        raise ValueError(f"{text!r} is an address: hosts are allowed by name only")
    if set(text) & {"/", ":", "@"}:
        raise ValueError(f"{text!r} is more than a host name: leave out scheme, port and path; the port is always 443")
    wildcard = _WILDCARD if text.startswith(_WILDCARD) else ""
    bare = text.removeprefix(_WILDCARD)
    name = canonical_name(_to_ascii(bare))
    if name is None:
        if wildcard and canonical_name(f"any.{_to_ascii(bare)}"):
            raise ValueError(f"{text!r} would allow every host of a top-level domain: name a domain below it")
        raise ValueError(f"{text!r} is not a full host name: write host.org, or *.host.org for all names below it")
    return wildcard + name


def is_allowed(host: str, names: Iterable[str]) -> bool:
    """Return whether a canonical host is one of the names, or below a name that begins with `*.`."""
    return any(host.endswith(name[1:]) if name.startswith(_WILDCARD) else host == name for name in names)


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet and not to a private network."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        if ip in _NAT64:
            ip = IPv4Address(ip.packed[-4:])
        elif ip.scope_id or ip not in _PUBLIC_V6:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved) and not any(ip in each for each in _BLOCKED)


def parse_connect_request(head: bytes) -> tuple[str, int]:
    """Return the host and port of a CONNECT request as the client wrote them."""
    line = head.split(b"\r\n", 1)[0]
    if not line.startswith(b"CONNECT "):
        raise EgressRefused("only https is forwarded, by CONNECT: use an https address, plain http is refused")
    found = _CONNECT.fullmatch(line)
    if found is None:
        raise EgressRefused("this is not a CONNECT request for a host and a port")
    return found["host"].decode("ascii"), int(found["port"])


def check_host(host: str, port: int, names: Iterable[str], *, allowed_port: int = HTTPS_PORT) -> str:
    """Return the canonical name of an allowed host; raises EgressRefused with the reason if it is not allowed."""
    name = canonical_name(host)
    if name is None:
        raise EgressRefused("hosts are reached by their full name only, not by an address")
    if port != allowed_port:
        raise EgressRefused(f"port {port} is not allowed, only {allowed_port} is")
    if not is_allowed(name, names):
        raise EgressRefused(f"{name} is not in soldiers.egress of kingdom.yaml")
    return name


def _to_ascii(name: str) -> str:
    """Return the ASCII form of a name for DNS; an invalid name is returned unchanged and refused later."""
    if name.isascii():
        return name
    try:
        return URL.build(scheme="https", host=name).raw_host or name
    except ValueError:
        return name


def _is_address(text: str) -> bool:
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return bool(_NUMBER.fullmatch(text.lower().removesuffix(".").rpartition(".")[2]))
    return True
