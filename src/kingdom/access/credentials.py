"""Invites, sessions and tokens. A store keeps only the hash of a secret, and the hash is the id of the record."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from kingdom.access.rights import Right, Visitor
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document
from kingdom.errors import Misconfigured, NotFound, NotSignedIn, Permanent

ACTIVE, ENDED = "active", "ended"
INVITE_LASTS = timedelta(minutes=10)
_SECRET_BYTES = 32
# An id has this many hexadecimal digits of the hash of its secret.
_ID_LENGTH = 40
# A shortened id must have at least this many characters.
_ID_LENGTH_MIN = 6
_NOTE_MAX = 200
_PAGE_SIZE = 100
_NAME_INDEX = "name"
REVOKED, SIGNED_OUT, EXPIRED = "revoked", "signed_out", "expired"
_ENDS = (REVOKED, SIGNED_OUT, EXPIRED)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def _kind(name: str) -> RecordKind:
    folder = f"state/web/{name}s"
    return RecordKind(
        name=f"web-{name}",
        directories={ACTIVE: folder, ENDED: f"{folder}/ended"},
        final=frozenset({ENDED}),
        retention=timedelta(days=30),
        indexes=(_NAME_INDEX,),
    )


@dataclass(frozen=True, slots=True)
class CredentialKind:
    """A kind of credential: its name, the beginning of its secrets, and the kind of its records."""

    name: str
    prefix: str
    records: RecordKind


INVITE = CredentialKind("invite", "ki_", _kind("invite"))
SESSION = CredentialKind("session", "ks_", _kind("session"))
TOKEN = CredentialKind("token", "kt_", _kind("token"))
CREDENTIAL_KINDS = (INVITE, SESSION, TOKEN)
KINDS = tuple(each.records for each in CREDENTIAL_KINDS)


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """An invite, a session or a token, without its secret. `note` is the browser of a session."""

    id: str
    name: str
    may: tuple[Right, ...]
    generals: tuple[str, ...] = ()
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Who gets which rights, and for how long; `lasts` is None for rights without an end."""

    name: str
    may: tuple[Right, ...]
    generals: tuple[str, ...] = ()
    lasts: timedelta | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Misconfigured(f"{self.name!r} is not a name: use up to 64 letters, digits and . _ @ + -")
        if not self.may:
            raise Misconfigured(f"{self.name} would have no right: name at least one of {', '.join(Right)}")


def credential_kind_of(secret: str) -> CredentialKind | None:
    """Return the kind of a secret by its beginning, or None."""
    return next((kind for kind in CREDENTIAL_KINDS if secret.startswith(kind.prefix)), None)


async def issue(
    transaction: Transaction, kind: CredentialKind, grant: Grant, *, by: str, now: datetime
) -> tuple[str, Credential]:
    """Store a new credential, and return its secret with it. Two active tokens cannot have the same name.

    Some expired credentials are ended too.
    """
    await _end_expired(transaction, by=by, now=now)
    if kind is TOKEN and await find_by_name(transaction, TOKEN, grant.name):
        raise Permanent(f"there is a token {grant.name!r} already: revoke it first, or choose another name")
    secret = kind.prefix + secrets.token_urlsafe(_SECRET_BYTES)
    credential = Credential(
        id=_hash(secret),
        name=grant.name,
        may=tuple(right for right in Right if right in grant.may),
        generals=grant.generals,
        created_at=now,
        created_by=by,
        expires_at=now + grant.lasts if grant.lasts else None,
        note=grant.note[:_NOTE_MAX],
    )
    await transaction.put(_record(kind, credential))
    await transaction.append(_entry(kind, "created", credential, by))
    return secret, credential


async def find_valid(
    transaction: Transaction, kind: CredentialKind, secret: str, now: datetime
) -> tuple[Record, Credential] | None:
    """Return the credential of a secret, unless it is unknown, ended or expired."""
    return await find_valid_by_id(transaction, kind, _hash(secret), now)


async def find_valid_by_id(
    transaction: Transaction, kind: CredentialKind, credential_id: str, now: datetime
) -> tuple[Record, Credential] | None:
    """Return the credential with an id, unless it is unknown, ended or expired."""
    record = await transaction.get(kind.records.name, credential_id)
    if record is None or record.state != ACTIVE or (record.due_at and record.due_at <= now):
        return None
    return record, read_document(record.doc, Credential)


def visitor_of(kind: CredentialKind, credential: Credential) -> Visitor:
    """Return the visitor who uses a credential."""
    return Visitor(
        name=credential.name,
        rights=credential.may,
        generals=credential.generals,
        credential=kind.name,
        credential_id=credential.id,
        expires_at=credential.expires_at,
    )


async def redeem_invite(
    transaction: Transaction, secret: str, *, note: str, lasts: timedelta, now: datetime
) -> tuple[str, Credential]:
    """End an invite and start a session with its rights."""
    found = await find_valid(transaction, INVITE, secret, now)
    if found is None:
        raise NotSignedIn("this invite is unknown, used or expired: ask for a new one (`kingdom web invite`)")
    record, invite = found
    await _end(transaction, INVITE, record, invite, by=invite.name, what="used")
    grant = Grant(name=invite.name, may=invite.may, generals=invite.generals, lasts=lasts, note=note)
    return await issue(transaction, SESSION, grant, by=invite.name, now=now)


async def revoke(
    transaction: Transaction, kind: CredentialKind, credential: Credential, *, by: str, what: str = REVOKED
) -> None:
    """End a credential. Ending it again changes nothing."""
    record = await transaction.get(kind.records.name, credential.id)
    if record and record.state == ACTIVE:
        await _end(transaction, kind, record, credential, by=by, what=what)


def ended_credential(entry: LogEntry) -> str | None:
    """Return the id of the session or token whose end a log entry reports, or None for other entries."""
    is_end = any(entry.type == f"web.{kind.name}_{what}" for kind in (SESSION, TOKEN) for what in _ENDS)
    return entry.aggregate_id if is_end else None


async def find_by_name(transaction: Transaction, kind: CredentialKind, name: str) -> list[Credential]:
    """Return the active credentials with a name."""
    query = RecordQuery(kind=kind.records.name, state=ACTIVE, index=_NAME_INDEX, value=name, limit=_PAGE_SIZE)
    return [read_document(record.doc, Credential) for record in await transaction.find(query)]


async def get_by_name(transaction: Transaction, kind: CredentialKind, name: str) -> list[Credential]:
    """Return the active credentials with a name, else those whose id begins with it; raise NotFound if none."""
    if found := await find_by_name(transaction, kind, name):
        return found
    if len(name) >= _ID_LENGTH_MIN:
        query = RecordQuery(kind=kind.records.name, state=ACTIVE, after=name[:-1], limit=_PAGE_SIZE)
        page = await transaction.find(query)
        if found := [read_document(each.doc, Credential) for each in page if each.id.startswith(name)]:
            return found
    # Of the groups of commands, only that of the sessions has a plural name.
    group = "sessions" if kind is SESSION else kind.name
    raise NotFound(f"there is no active {kind.name} {name!r}: `kingdom web {group} list` shows all")


async def list_credentials(
    transaction: Transaction, kind: CredentialKind, *, after: str | None, limit: int
) -> list[Credential]:
    """Return active credentials in the order of their ids."""
    query = RecordQuery(kind=kind.records.name, state=ACTIVE, after=after, limit=limit)
    return [read_document(record.doc, Credential) for record in await transaction.find(query)]


async def _end_expired(transaction: Transaction, *, by: str, now: datetime) -> None:
    for kind in CREDENTIAL_KINDS:
        due = RecordQuery(kind=kind.records.name, state=ACTIVE, due_by=now, limit=_PAGE_SIZE)
        for old in await transaction.find(due):
            await _end(transaction, kind, old, read_document(old.doc, Credential), by=by, what=EXPIRED)


async def _end(
    transaction: Transaction, kind: CredentialKind, record: Record, credential: Credential, *, by: str, what: str
) -> None:
    await transaction.put(_record(kind, credential, version=record.version, state=ENDED))
    await transaction.append(_entry(kind, what, credential, by))


def _record(kind: CredentialKind, credential: Credential, *, version: int = 0, state: str = ACTIVE) -> Record:
    return Record(
        kind=kind.records.name,
        id=credential.id,
        version=version,
        state=state,
        indexed={_NAME_INDEX: credential.name},
        due_at=credential.expires_at if state == ACTIVE else None,
        doc=msgspec.to_builtins(credential),
    )


def _entry(kind: CredentialKind, what: str, credential: Credential, by: str) -> LogEntry:
    return LogEntry(
        type=f"web.{kind.name}_{what}",
        actor=by,
        data={"name": credential.name, "may": list(credential.may), "generals": list(credential.generals)},
        aggregate_type=f"web-{kind.name}",
        aggregate_id=credential.id,
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:_ID_LENGTH]
