"""`kingdom followup …`: the pull requests that Kingdom follows until they are merged."""

from functools import partial
from typing import Annotated

import msgspec
import typer

from kingdom.bus.app import Application
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, one
from kingdom.clock import utc_now
from kingdom.court.followups.records import FOLLOWUPS, Followup, FollowupState, end_followup, load_followup
from kingdom.court.questions import QUESTIONS
from kingdom.court.sentinel.records import LOOKS
from kingdom.court.streams import TOPOLOGY
from kingdom.workflow.records import each_record, run_transaction

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, show and stop the pull requests that Kingdom follows until they are merged.",
)
_APPLICATION = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(FOLLOWUPS, LOOKS, QUESTIONS))
PullRequest = Annotated[
    str, typer.Argument(metavar="PULL_REQUEST", help="A followed pull request, such as acme/shop#7.")
]


@command(app, "list", result=array(Followup))
async def list_(
    call: CommandCall,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that are no longer followed.")] = False,
    general: Annotated[str, typer.Option(help="Only those of this General.")] = "",
    limit: Limit = 50,
) -> None:
    """List the followed pull requests, the newest last, with the rounds that each has used.

    Example: kingdom followup list --all

    JSON: an array of {id, repo, number, branch, base, general, task_id, workflow_id, head, created_at, ends_at, state,
    reason, rounds: {REASON: count}, failing: [name], waiting: [id], cost_usd, grants, granted_at_usd, pushed_at,
    ended_at}.
    """
    states = [state for state in FollowupState if every or state is not FollowupState.ENDED]
    async with call.bus(_APPLICATION, create=False) as bus, bus.transaction() as transaction:
        records = [
            record
            for state in states
            async for record in each_record(transaction, RecordQuery(kind=FOLLOWUPS.name, state=state))
        ]
    found = [each for each in call.readable(records, Followup) if general in ("", each.general)]
    shown = sorted(found, key=lambda followup: followup.created_at)[-limit:]
    if call.output.json:
        call.output.document(shown)
    elif shown:
        columns = ("pull request", "general", "state", "rounds", "usd", "until", "why")
        call.output.table(columns, [_row(followup) for followup in shown])
    else:
        call.output.say(
            "No pull request is followed. A General follows its pull requests if general.yaml has `follow`."
        )


@command(app, "show", result=one(Followup))
async def show(call: CommandCall, pull_request: PullRequest) -> None:
    """Show a followed pull request: its branch, its last commit, its rounds and their cost.

    Example: kingdom followup show acme/shop#7

    JSON: the fields of `list`.
    """
    async with call.bus(_APPLICATION, create=False) as bus, bus.transaction() as transaction:
        _, followup = await load_followup(transaction, pull_request)
        look = await transaction.get(LOOKS.name, followup.id)
    if call.output.json:
        call.output.document(followup)
        return
    fields = {**msgspec.structs.asdict(followup), "rounds": _rounds(followup), "cost_usd": f"{followup.cost_usd:.2f}"}
    rows = [(name.replace("_", " "), _text(value)) for name, value in fields.items() if value not in ("", None, ())]
    if look and (problem := look.doc.get("problem")):
        rows.append(("last look", f"a part could not be read: {problem}"))
    call.output.table(("followup", ""), rows)
    call.output.say(f"The timeline of its newest round: kingdom explain {followup.assignment_id}")


@command(app, "stop", result=one(Followup))
async def stop(
    call: CommandCall,
    pull_request: PullRequest,
    *,
    reason: Annotated[str, typer.Option(help="Why, for those who look later.")] = "",
) -> None:
    """Stop to follow a pull request. A round that runs now goes on; no other round begins.

    Example: kingdom followup stop acme/shop#7

    JSON: the fields of `list`.
    """
    async with call.bus(_APPLICATION, create=False) as bus:
        stopped = await run_transaction(bus, partial(_stop, pull_request, reason, call.settings.actor))
    if call.output.json:
        call.output.document(stopped)
        return
    call.output.say(f"{stopped.id} is not followed any more: {stopped.reason}")


async def _stop(pull_request: str, reason: str, actor: str, transaction: Transaction) -> Followup:
    record, followup = await load_followup(transaction, pull_request)
    return await end_followup(transaction, record, followup, reason or f"{actor} stopped it", at=utc_now(), actor=actor)


def _row(followup: Followup) -> tuple[object, ...]:
    return (
        followup.id,
        followup.general,
        followup.state,
        _rounds(followup),
        f"{followup.cost_usd:.2f}",
        followup.ended_at or followup.ends_at,
        followup.reason or None,
    )


def _rounds(followup: Followup) -> str | None:
    """Return how many rounds were used for each reason, such as `review 1, checks 2`."""
    return ", ".join(f"{reason} {count}" for reason, count in followup.rounds.items() if count) or None


def _text(value: object) -> object:
    return "\n".join(value) if isinstance(value, tuple) else value
