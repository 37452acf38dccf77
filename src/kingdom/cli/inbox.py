"""`kingdom inbox`: the questions that wait for a person."""

from datetime import datetime

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.bus.app import Application
from kingdom.bus.port import Transaction
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.command import Call, command
from kingdom.cli.output import ago, table
from kingdom.cli.shape import array
from kingdom.cli.watching import Watch, itself, tell, watch
from kingdom.clock import utc_now
from kingdom.court import records
from kingdom.court.asks import ASKS, Ask
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.court.envoy.answers import open_asks, unheard_answer
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.explain.tell import subject_of
from kingdom.court.streams import TOPOLOGY

app = typer.Typer(add_completion=False)
# What a person's answer touches.
ANSWERS = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, ASKS, ENVOYS))


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for a person; one that asks to approve a petition names it.

    `about` tells what happened that it came from, `answer` what somebody said that the King has not taken up yet.
    """

    task_id: str
    general: str
    about: str
    question: str
    choices: tuple[str, ...]
    people: tuple[str, ...]
    asked_at: datetime
    due_at: datetime
    default: str
    answer: str | msgspec.UnsetType = msgspec.UNSET
    petition_id: str | msgspec.UnsetType = msgspec.UNSET


@command(app, "inbox", answer=array(OpenQuestion))
async def inbox(call: Call, *, again: Watch = False) -> None:
    """Show every question that waits for a person, the oldest first.

    Example: kingdom inbox --watch

    One that asks to approve a petition goes by the id of that petition.

    JSON: an array of {task_id, general, about, question, choices: [text], people: [name], asked_at, due_at, default},
    with an answer that the King has not taken up yet, and a petition_id where a petition is to be approved; with
    --watch one per line, whenever something has changed.
    """
    async with call.bus(ANSWERS, create=False) as bus:

        async def look() -> list[OpenQuestion]:
            async with bus.transaction() as transaction:
                asks = await open_asks(transaction, call.leave_out)
                return [await _shown(call, transaction, ask) for ask in asks]

        if again:
            await watch(call.output, look, _view, itself)
        tell(call.output, await look(), _view, itself)


def _view(asks: list[OpenQuestion]) -> RenderableType:
    if not asks:
        return Text("Nobody waits for an answer.")
    now = utc_now()
    rows = [
        (
            ask.task_id,
            ask.general,
            ask.about or None,
            ask.question,
            f"answered: {ask.answer}, waits for the King" if ask.answer else ", ".join(ask.choices) or None,
            f"{ago((now - ask.asked_at).total_seconds())} ago",
            f"{ask.due_at.astimezone():%b %d %H:%M}",
        )
        for ask in asks
    ]
    hint = "Answer with: kingdom answer TASK TEXT. More: kingdom show TASK"
    return Group(table(("task", "general", "about", "question", "choices", "asked", "until"), rows), Text(hint))


async def _shown(call: Call, transaction: Transaction, ask: Ask) -> OpenQuestion:
    assignment = call.read(await transaction.get(records.ASSIGNMENTS.name, ask.task_id), Assignment)
    given = call.read(await unheard_answer(transaction, ask), ExternalEvent)
    return OpenQuestion(
        task_id=ask.id,
        general=ask.general,
        about=_about(assignment) if assignment else "",
        question=ask.question,
        choices=ask.choices,
        people=ask.people,
        asked_at=ask.asked_at,
        due_at=ask.due_at,
        default=ask.default,
        answer=given.payload["text"] if given else msgspec.UNSET,
        petition_id=ask.petition or msgspec.UNSET,
    )


def _about(assignment: Assignment) -> str:
    """Return what happened, where and to what, in one line."""
    number = f"#{number}" if (number := assignment.payload.get("number")) else ""
    return f"{assignment.type} {assignment.repo or ''}{number} {subject_of(assignment.payload)}".strip()
