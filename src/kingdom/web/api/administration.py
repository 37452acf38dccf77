"""Signing in and out, and the credentials of people and programs."""

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from kingdom.access.credentials import (
    INVITE,
    INVITE_LASTS,
    SESSION,
    SIGNED_OUT,
    TOKEN,
    Credential,
    CredentialKind,
    Grant,
    find_valid_by_id,
    get_by_name,
    issue,
    list_credentials,
    redeem_invite,
    revoke,
)
from kingdom.access.rights import Right
from kingdom.bus.port import Transaction
from kingdom.web.access import ACCESS
from kingdom.web.route import ApiCall, Empty, Page, PageQuery
from kingdom.web.stream import STREAM
from kingdom.workflow.records import run_transaction

_Hours = Annotated[float, Meta(gt=0, le=24 * 3660)]
_Rights = Annotated[tuple[Right, ...], Meta(min_length=1, max_length=len(Right))]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The secret of an invite."""

    secret: Annotated[str, Meta(min_length=1, max_length=200)]


class Myself(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent the request, and the rights of this person or program."""

    name: str
    may: tuple[Right, ...]
    generals: tuple[str, ...]


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A token to create. `generals` limits what it may answer and act on."""

    name: _Name
    may: _Rights
    generals: tuple[str, ...] = ()
    expires_hours: _Hours | None = None


class NewInvite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An invite to create, for a person under the name that `ask_people` uses."""

    name: _Name
    may: _Rights
    generals: tuple[str, ...] = ()


class IssuedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A new credential with its secret, which is not shown again."""

    secret: str
    credential: Credential


async def post_session(call: ApiCall) -> Myself:
    """Sign in with an invite. The response sets the cookie of a new session."""
    lasts = timedelta(days=call.context.web.session_days)
    note = call.request.headers.get("User-Agent", "")

    async def act(transaction: Transaction) -> tuple[str, Credential]:
        return await redeem_invite(transaction, call.body.secret, note=note, lasts=lasts, now=call.context.clock())

    secret, session = await run_transaction(call.context.bus, act)
    call.headers["Set-Cookie"] = session_cookie(call, secret, lasts)
    return Myself(name=session.name, may=session.may, generals=session.generals)


async def delete_session(call: ApiCall) -> Empty:
    """Sign out: end the session of this request."""
    if call.visitor.credential == SESSION.name:

        async def act(transaction: Transaction) -> None:
            found = await find_valid_by_id(transaction, SESSION, call.visitor.credential_id, call.context.clock())
            if found:
                await revoke(transaction, SESSION, found[1], by=call.visitor.actor, what=SIGNED_OUT)

        await run_transaction(call.context.bus, act)
        call.request.app[STREAM].close(call.visitor.credential_id)
    call.headers["Set-Cookie"] = session_cookie(call, "", timedelta(0))
    return Empty()


async def show_me(call: ApiCall) -> Myself:
    """Show who sent the request, and the rights of this person or program."""
    return Myself(name=call.visitor.name, may=call.visitor.rights, generals=call.visitor.generals)


async def list_tokens(call: ApiCall) -> Page[Credential]:
    """List the tokens of programs, without their secrets."""
    return await _list(call, TOKEN)


async def list_sessions(call: ApiCall) -> Page[Credential]:
    """List the sessions of people."""
    return await _list(call, SESSION)


async def post_token(call: ApiCall) -> IssuedSecret:
    """Create a token for a program. Two active tokens cannot have the same name."""
    given: NewToken = call.body
    lasts = timedelta(hours=given.expires_hours) if given.expires_hours else None
    return await _issue(call, TOKEN, Grant(name=given.name, may=given.may, generals=given.generals, lasts=lasts))


async def post_invite(call: ApiCall) -> IssuedSecret:
    """Invite a person: the secret signs in once, within ten minutes."""
    given: NewInvite = call.body
    grant = Grant(name=given.name, may=given.may, generals=given.generals, lasts=INVITE_LASTS)
    return await _issue(call, INVITE, grant)


async def delete_token(call: ApiCall) -> Page[Credential]:
    """Revoke a token by its name or id."""
    return await _revoke(call, TOKEN, call.path["name"])


async def delete_sessions(call: ApiCall) -> Page[Credential]:
    """Revoke a session by its id, or all sessions of a person by name."""
    return await _revoke(call, SESSION, call.path["name"])


def session_cookie(call: ApiCall, secret: str, lasts: timedelta) -> str:
    """Return the value of the header Set-Cookie."""
    settings = call.context.web
    name, secure = settings.cookie_name(call.request.app[ACCESS].port), "; Secure" if settings.is_https else ""
    return f"{name}={secret}; Max-Age={int(lasts.total_seconds())}; Path=/; HttpOnly; SameSite=Lax{secure}"


async def _list(call: ApiCall, kind: CredentialKind) -> Page[Credential]:
    query: PageQuery = call.query
    async with call.context.bus.transaction() as transaction:
        found = await list_credentials(transaction, kind, after=query.after or None, limit=query.limit + 1)
    shown = found[: query.limit]
    return Page(items=shown, next=shown[-1].id if len(found) > query.limit else None)


async def _issue(call: ApiCall, kind: CredentialKind, grant: Grant) -> IssuedSecret:
    for right in grant.may:
        call.visitor.require(right)
    _require_generals(call, grant.generals)
    now: datetime = call.context.clock()
    act = partial(issue, kind=kind, grant=grant, by=call.visitor.actor, now=now)
    secret, credential = await run_transaction(call.context.bus, act)
    return IssuedSecret(secret=secret, credential=credential)


def _require_generals(call: ApiCall, generals: tuple[str, ...]) -> None:
    """Refuse an administrator of some Generals a credential for other Generals."""
    for general in generals or ("",):
        call.visitor.require_general(general)


async def _revoke(call: ApiCall, kind: CredentialKind, name: str) -> Page[Credential]:
    async def act(transaction: Transaction) -> list[Credential]:
        found = await get_by_name(transaction, kind, name)
        for each in found:
            _require_generals(call, each.generals)
            await revoke(transaction, kind, each, by=call.visitor.actor)
        return found

    ended = await run_transaction(call.context.bus, act)
    for each in ended:
        # Other processes close their streams when they read the revocation in the log.
        call.request.app[STREAM].close(each.id)
    return Page(items=ended)
