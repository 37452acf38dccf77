"""`kingdom web …`: run the web server, and manage who may use it."""

import logging
import webbrowser
from functools import partial
from typing import Annotated

import typer

from kingdom.access.credentials import (
    INVITE,
    INVITE_LASTS,
    KINDS,
    SESSION,
    TOKEN,
    Credential,
    CredentialKind,
    Grant,
    get_by_name,
    issue,
    list_credentials,
    revoke,
)
from kingdom.access.rights import Right
from kingdom.access.servers import WEB_SERVERS, find_url
from kingdom.bus.app import Application
from kingdom.bus.port import Transaction
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import duration
from kingdom.cli.framework.json_result import LOG_LINES, array, one
from kingdom.cli.framework.long_running import LOOPBACK, Level, MetricsHost, MetricsPort
from kingdom.cli.machine.role import run_court_role
from kingdom.clock import utc_now
from kingdom.court.streams import TOPOLOGY
from kingdom.errors import Misconfigured, NotFound
from kingdom.views.access import CreatedToken, Invitation
from kingdom.workflow.records import run_transaction

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Run the web server with the HTTP API; invite people, and manage tokens and sessions.",
)
token = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens of programs.")
sessions = typer.Typer(no_args_is_help=True, help="List and revoke the sessions of people.")
app.add_typer(token, name="token")
app.add_typer(sessions, name="sessions")
_ACCESS = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*KINDS, WEB_SERVERS))
_LISTED_MAX = 1000
_START = "start one with `kingdom web`, or all with `kingdom up`"
_May = Annotated[str, typer.Option("--may", help=f"The rights, separated by commas: {', '.join(Right)}.")]
_Generals = Annotated[
    list[str] | None, typer.Option("--general", help="Answer and act only for this General; repeatable.")
]


@command(app, "run", result=LOG_LINES, json_flags=("--json-logs", "--json"))
async def run(
    call: CommandCall,
    *,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Run the web server until SIGTERM or SIGINT; `kingdom web` without a verb does this too.

    `kingdom up` includes it, unless kingdom.yaml has `web: off`. Any number of processes can serve one store.

    Example: kingdom web run --log-level warning

    JSON: log lines, one object each, on standard error.
    """
    level = logging.getLevelNamesMapping()[log_level.upper()]
    cut_off = await run_court_role(call, "web", level, metrics_host, metrics_port)
    return exit_code.FAILED if cut_off else None


@command(app, "invite", result=one(Invitation))
async def invite(
    call: CommandCall,
    person: Annotated[
        str, typer.Argument(metavar="NAME", help="The person, under the name that `ask_people` of Generals uses.")
    ],
    *,
    may: _May = "look,answer",
    general: _Generals = None,
) -> None:
    """Print a link that signs a person in: once, within ten minutes.

    Example: kingdom web invite dana --may look,answer,act

    JSON: {name, may: [right], generals: [name], url, expires_at}.
    """
    made = await _invite(call, Grant(name=person, may=_rights(may), generals=tuple(general or ()), lasts=INVITE_LASTS))
    if call.output.json:
        call.output.document(made)
    call.output.say(made.url, f"It signs {person} in once, within ten minutes.")


@command(app, "open", result=one(Invitation))
async def open_(call: CommandCall) -> None:
    """Open the web interface in a browser, signed in under your account name with every right.

    Example: kingdom web open

    JSON: {name, may: [right], generals: [name], url, expires_at}; the browser is not opened then.
    """
    person = call.settings.actor.partition("@")[0]
    made = await _invite(call, Grant(name=person, may=tuple(Right), lasts=INVITE_LASTS), must_run=True)
    if call.output.json:
        call.output.document(made)
        return
    call.output.say(made.url, "If no browser opens, open this link within ten minutes.")
    webbrowser.open(made.url)


@command(token, "create", result=one(CreatedToken))
async def create_token(
    call: CommandCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the program.")],
    *,
    may: _May = "look",
    general: _Generals = None,
    expires: Annotated[str, typer.Option(help="After this time, such as 30d, the token ends; by default never.")] = "",
) -> None:
    """Create a token for a program, and print it once; the store has only its hash.

    Example: kingdom web token create ci --may look,act --general gen-pr --expires 30d

    JSON: {token, name, may: [right], generals: [name], expires_at}.
    """
    lasts = duration(expires) if expires else None
    grant = Grant(name=name, may=_rights(may), generals=tuple(general or ()), lasts=lasts)
    async with call.bus(_ACCESS) as bus:
        act = partial(issue, kind=TOKEN, grant=grant, by=call.settings.actor, now=utc_now())
        secret, credential = await run_transaction(bus, act)
    if call.output.json:
        call.output.document(
            CreatedToken(
                token=secret,
                name=credential.name,
                may=credential.may,
                generals=credential.generals,
                expires_at=credential.expires_at,
            )
        )
    call.output.say(secret)
    call.output.note("Keep it: it is not shown again. Send it as `Authorization: Bearer TOKEN`.")


@command(token, "list", result=array(Credential))
async def list_tokens(call: CommandCall) -> None:
    """List the tokens of programs, without their secrets.

    Example: kingdom web token list

    JSON: an array of {id, name, may: [right], generals: [name], created_at, created_by, expires_at, note}.
    """
    await _list(call, TOKEN)


@command(token, "revoke", result=array(Credential))
async def revoke_token(
    call: CommandCall, name: Annotated[str, typer.Argument(metavar="NAME", help="The name or the id of a token.")]
) -> None:
    """Revoke a token: its next request is refused.

    Example: kingdom web token revoke ci

    JSON: an array of {id, name, may: [right], generals: [name], created_at, created_by, expires_at, note}.
    """
    await _revoke(call, TOKEN, name)


@command(sessions, "list", result=array(Credential))
async def list_sessions(call: CommandCall) -> None:
    """List the sessions of people.

    Example: kingdom web sessions list

    JSON: an array of {id, name, may: [right], generals: [name], created_at, created_by, expires_at, note}.
    """
    await _list(call, SESSION)


@command(sessions, "revoke", result=array(Credential))
async def revoke_session(
    call: CommandCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A person, or the beginning of a session's id.")],
) -> None:
    """Revoke all sessions of a person, or one session: the next request of the browser is refused.

    Example: kingdom web sessions revoke dana

    JSON: an array of {id, name, may: [right], generals: [name], created_at, created_by, expires_at, note}.
    """
    await _revoke(call, SESSION, name)


def _rights(text: str) -> tuple[Right, ...]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := [each for each in names if each not in set(Right)]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a right: write some of {', '.join(Right)}.")
    return tuple(Right(each) for each in names)


async def _invite(call: CommandCall, grant: Grant, *, must_run: bool = False) -> Invitation:
    settings = call.realm.web_settings
    if settings is None:
        raise Misconfigured("the web interface is off: remove `web: off` from kingdom.yaml")
    if reason := settings.why_unsafe():
        raise Misconfigured(reason)
    async with call.bus(_ACCESS) as bus:
        async with bus.transaction() as transaction:
            url, is_running = await find_url(transaction, settings)
        if must_run and not is_running:
            raise NotFound(f"no web server runs on this machine: {_START}")
        if not (is_running or settings.url):
            call.output.note(f"No web server runs on this machine, and the link needs one: {_START}.")
        act = partial(issue, kind=INVITE, grant=grant, by=call.settings.actor, now=utc_now())
        secret, credential = await run_transaction(bus, act)
    return Invitation(
        name=credential.name,
        may=credential.may,
        generals=credential.generals,
        url=f"{url}/sign-in#{secret}",
        expires_at=utc_now() + INVITE_LASTS,
    )


async def _list(call: CommandCall, kind: CredentialKind) -> None:
    async with call.bus(_ACCESS, create=False) as bus, bus.transaction() as transaction:
        found = await list_credentials(transaction, kind, after=None, limit=_LISTED_MAX)
    if call.output.json:
        call.output.document(found)
    elif found:
        rows = [
            (each.id[:12], each.name, ", ".join(each.may), ", ".join(each.generals) or None, each.expires_at, each.note)
            for each in found
        ]
        call.output.table(("id", "name", "may", "generals", "expires", "note"), rows)
    else:
        call.output.say(f"There is no active {kind.name}.")


async def _revoke(call: CommandCall, kind: CredentialKind, name: str) -> None:
    async def act(transaction: Transaction) -> list[Credential]:
        found = await get_by_name(transaction, kind, name)
        for each in found:
            await revoke(transaction, kind, each, by=call.settings.actor)
        return found

    async with call.bus(_ACCESS, create=False) as bus:
        ended = await run_transaction(bus, act)
    if call.output.json:
        call.output.document(ended)
    call.output.say(f"Revoked {len(ended)} {kind.name}(s) of {', '.join(sorted({each.name for each in ended}))}.")
