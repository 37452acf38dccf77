"""The section `web` of the settings."""

import ipaddress
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from kingdom.access.rights import Right

DEFAULT_ADDRESS = "127.0.0.1:8700"
COOKIE = "kingdom-session"
_UNIX = "unix:"
_Positive = Annotated[float, Meta(gt=0)]
_PORT_MAX = 65535


class ListenAddress(NamedTuple):
    """Where the server listens: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Return whether only programs on this machine can connect."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class _WebSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings; an unknown field is an error."""


class ProxySettings(_WebSection, frozen=True, kw_only=True):
    """A proxy that signs people in. It is trusted only over a Unix socket, or if it sends the secret."""

    header: Annotated[str, Meta(min_length=1)] = "X-Forwarded-User"
    secret: str = ""
    people: dict[str, tuple[Right, ...]] = {}


class WebSettings(_WebSection, frozen=True, kw_only=True):
    """The web interface and the HTTP API."""

    address: str = DEFAULT_ADDRESS
    # The address that people use, if it is not `address`, such as the https address of a proxy.
    url: Annotated[str, Meta(pattern=r"^(https?://[^/]+/?)?$")] = ""
    insecure: bool = False
    session_days: _Positive = 30
    proxy: ProxySettings | None = None

    def __post_init__(self) -> None:
        # An invalid address is an error of the settings file, with its line.
        parse_address(self.address)

    @property
    def listen(self) -> ListenAddress:
        """Return where the server listens."""
        return parse_address(self.address)

    @property
    def is_https(self) -> bool:
        """Return whether people use https, which a proxy provides."""
        return self.url.startswith("https:")

    def cookie_name(self, port: int) -> str:
        """Return the name of the session cookie of a server that listens on `port`.

        Under https, its prefix binds the cookie to this host. Without a proxy, servers of several realms on one machine
        share the cookies of its host name, so the name contains the port.
        """
        return "__Host-kingdom" if self.is_https else COOKIE if self.url else f"{COOKIE}-{port}"

    def why_unsafe(self) -> str:
        """Return why these settings would expose sessions or trust anyone, or ""."""
        if not self.listen.is_local and not self.is_https and not self.insecure:
            return (
                f"web.address {self.address} is open to other machines without https: set web.url to the https address"
                " of a proxy, listen on 127.0.0.1, or accept the risk with web.insecure: true"
            )
        if self.proxy and not self.proxy.secret and not self.listen.path:
            return (
                "web.proxy has no secret, so anyone could claim a name: set web.proxy.secret, or listen on a Unix"
                " socket with web.address: unix:PATH"
            )
        if self.listen.path and not self.url:
            return "web.address is a Unix socket, which no browser can open: set web.url to the address of the proxy"
        return ""

    def own_hosts(self, port: int) -> frozenset[str]:
        """Return the values of the header `Host` that mean this server, which listens on `port`."""
        hosts = {urlsplit(self.url).netloc.lower()} if self.url else set()
        if not self.listen.path:
            names = {"localhost", "127.0.0.1", "[::1]"}
            if not self.listen.host.startswith(("0.0.0.0", "::")):  # noqa: S104 - these mean every address
                names.add(f"[{self.listen.host}]" if ":" in self.listen.host else self.listen.host.lower())
            hosts |= {f"{name}:{port}" for name in names}
        return frozenset(hosts)

    def own_origins(self, port: int) -> frozenset[str]:
        """Return the values of the header `Origin` that mean this server, which listens on `port`."""
        url = urlsplit(self.url.lower())
        own = {f"{url.scheme}://{url.netloc}"} if self.url else set()
        return frozenset(own | {f"http://{host}" for host in self.own_hosts(port) - {url.netloc}})


def parse_address(text: str) -> ListenAddress:
    """Parse HOST:PORT, [IPV6]:PORT or unix:PATH."""
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return ListenAddress("", 0, text.removeprefix(_UNIX))
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > _PORT_MAX:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, [IPV6]:PORT or unix:PATH")
    return ListenAddress(host.strip("[]"), int(port))
