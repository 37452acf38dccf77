"""`kingdom inbox`: list the questions that wait for a person."""

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.actions.questions import to_open_question
from kingdom.bus.app import Application
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import array
from kingdom.cli.framework.output import table
from kingdom.cli.framework.watching import Watch, identity, print_state, watch
from kingdom.clock import utc_now
from kingdom.court import records
from kingdom.court.envoy.answers import open_questions
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.questions import QUESTIONS
from kingdom.court.streams import TOPOLOGY
from kingdom.text import format_duration
from kingdom.views.questions import OpenQuestion

app = typer.Typer(add_completion=False)
# The application whose records an answer changes.
ANSWERS_APPLICATION = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, QUESTIONS, ENVOYS))


@command(app, "inbox", result=array(OpenQuestion))
async def inbox(call: CommandCall, *, repeat: Watch = False) -> None:
    """List every question that waits for a person, the oldest first.

    Example: kingdom inbox --watch

    A question about a petition has the id of that petition.

    JSON: an array of {task_id, general, about, question, choices: [text], people: [name], asked_at, due_at, default,
    digest}. A question whose answer the King has not processed yet also has answer, and a question about a petition
    also has petition_id. With --watch an array per line whenever something changes.
    """
    async with call.bus(ANSWERS_APPLICATION, create=False) as bus:

        async def read() -> list[OpenQuestion]:
            async with bus.transaction() as transaction:
                asks = await open_questions(transaction, call.note_unreadable)
                return [await to_open_question(transaction, ask, call.note_unreadable) for ask in asks]

        if repeat:
            await watch(call.output, read, _view, identity)
        print_state(call.output, await read(), _view, identity)


def _view(asks: list[OpenQuestion]) -> RenderableType:
    if not asks:
        return Text("There are no open questions.")
    now = utc_now()
    rows = [
        (
            ask.task_id,
            ask.general,
            ask.about or None,
            ask.question,
            f"answered: {ask.answer}, waits for the King" if ask.answer else ", ".join(ask.choices) or None,
            f"{format_duration((now - ask.asked_at).total_seconds())} ago",
            f"{ask.due_at.astimezone():%b %d %H:%M}",
        )
        for ask in asks
    ]
    hint = "Answer with: kingdom answer ASSIGNMENT TEXT. More: kingdom show ASSIGNMENT"
    return Group(table(("assignment", "general", "about", "question", "choices", "asked", "until"), rows), Text(hint))
