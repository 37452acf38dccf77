"""Who sends a request, and whether the request may be served at all."""

import hmac
import socket
from dataclasses import dataclass

from aiohttp import web

from kingdom.access.credentials import (
    CREDENTIAL_KINDS,
    SESSION,
    TOKEN,
    CredentialKind,
    credential_kind_of,
    find_valid,
    find_valid_by_id,
    visitor_of,
)
from kingdom.access.rights import Right, Visitor
from kingdom.access.settings import WebSettings
from kingdom.bus.port import Bus
from kingdom.clock import utc_now
from kingdom.errors import MalformedRequest, NotSignedIn, Refused
from kingdom.web.route import Audience

PROXY_SECRET_HEADER = "X-Kingdom-Proxy-Secret"  # noqa: S105 - the name of a header
ACCESS: web.AppKey["AccessCheck"] = web.AppKey("access")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_BEARER = "bearer "
_EVERYONE = Visitor(name="", rights=())
_SIGN_IN_HINT = "sign in first: `kingdom web invite NAME` prints a link, `kingdom web token create` a token"


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """Checks requests to a server that listens on `port`. The check of a signed-in visitor reads one record."""

    bus: Bus
    settings: WebSettings
    port: int

    async def admit(self, request: web.Request, right: Right | Audience) -> Visitor:
        """Return the visitor who sent a request, or raise an error. The caller has already called `check_address`."""
        token = _bearer_token(request)
        if request.method not in _SAFE_METHODS and token is None:
            self._check_origin(request)
        if right is Audience.EVERYONE:
            return _EVERYONE
        visitor = await self._identify(request, token)
        if isinstance(right, Right):
            visitor.require(right)
        return visitor

    async def is_still_valid(self, visitor: Visitor) -> bool:
        """Return whether the session or token of a visitor has neither ended nor expired, for long connections."""
        for kind in CREDENTIAL_KINDS:
            if kind.name == visitor.credential:
                async with self.bus.transaction() as transaction:
                    found = await find_valid_by_id(transaction, kind, visitor.credential_id, utc_now())
                return found is not None
        # The rights of a person that a proxy names come from the settings and do not expire.
        return True

    async def _identify(self, request: web.Request, token: str | None) -> Visitor:
        if token is not None:
            return await self._by_secret(TOKEN, token)
        # A proxy knows the current person. The session may be that of an earlier person.
        name = self._name_by_proxy(request)
        if self.settings.proxy and name in self.settings.proxy.people:
            return Visitor(name=name, rights=self.settings.proxy.people[name], credential="proxy")
        if secret := request.cookies.get(self.settings.cookie_name(self.port)):
            return await self._by_secret(SESSION, secret)
        if name:
            raise NotSignedIn(f"{name} has no rights here: add the name to web.proxy.people in kingdom.yaml")
        raise NotSignedIn(_SIGN_IN_HINT)

    async def _by_secret(self, kind: CredentialKind, secret: str) -> Visitor:
        async with self.bus.transaction() as transaction:
            found = await find_valid(transaction, kind, secret, utc_now())
        if found is None:
            raise NotSignedIn(f"this {kind.name} is unknown, revoked or expired: {_SIGN_IN_HINT}")
        return visitor_of(kind, found[1])

    def _name_by_proxy(self, request: web.Request) -> str:
        """Return the name of the person in the header of a trusted proxy, or ""."""
        if self.settings.proxy is None or not (_is_unix_socket(request) or self._knows_secret(request)):
            return ""
        return request.headers.get(self.settings.proxy.header, "")

    def _knows_secret(self, request: web.Request) -> bool:
        expected = self.settings.proxy.secret if self.settings.proxy else ""
        given = request.headers.get(PROXY_SECRET_HEADER, "")
        return bool(expected) and hmac.compare_digest(expected.encode(), given.encode(errors="replace"))

    def check_address(self, request: web.Request) -> None:
        """Refuse a secret in the address, and a Host that is not ours, because a page may use DNS rebinding."""
        _refuse_secret_in_address(request)
        if request.headers.get("Host", "").lower() not in self.settings.own_hosts(self.port):
            raise Refused(
                "the header Host is not an address of this server: open the address that `kingdom web` prints, or set"
                " web.url in kingdom.yaml"
            )

    def _check_origin(self, request: web.Request) -> None:
        """Refuse a change that a page of another site requests through the browser of a signed-in person."""
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None:
            if site != "same-origin":
                raise Refused(f"this request comes from another site (Sec-Fetch-Site: {site}), so it is refused")
            return
        if request.headers.get("Origin", "").lower() not in self.settings.own_origins(self.port):
            raise Refused("a request that changes something needs Sec-Fetch-Site: same-origin, our Origin, or a token")


def _bearer_token(request: web.Request) -> str | None:
    given = request.headers.get("Authorization", "")
    if not given:
        return None
    if not given.lower().startswith(_BEARER):
        raise NotSignedIn("the header Authorization must be `Bearer TOKEN`: `kingdom web token create` makes a token")
    return given[len(_BEARER) :].strip()


def _refuse_secret_in_address(request: web.Request) -> None:
    """Refuse a secret in the address, where logs and histories keep it."""
    if any(credential_kind_of(value) for value in (*request.query.values(), *request.path.split("/"))):
        raise MalformedRequest(
            "the address contains a secret, which logs keep: revoke it, and send a new one in the header Authorization"
        )


def _is_unix_socket(request: web.Request) -> bool:
    connection = request.transport.get_extra_info("socket") if request.transport else None
    return connection is not None and connection.family == socket.AF_UNIX
