"""`kingdom inbox`: the questions that wait for a person."""

import typer

from kingdom.bus.app import Application
from kingdom.bus.dispatcher import Dispatcher
from kingdom.cli.command import Call, command
from kingdom.court import records
from kingdom.court.asks import ASKS
from kingdom.court.envoy.answers import open_asks
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.streams import TOPOLOGY

app = typer.Typer(add_completion=False)
# What a person's answer touches.
ANSWERS = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, ASKS, ENVOYS))


@command(app, "inbox")
async def inbox(call: Call) -> None:
    """Show every question that waits for a person, the oldest first.

    Example: kingdom inbox

    One that asks to approve a petition goes by the id of that petition.

    JSON: an array of {task_id, general, question, choices: [text], people: [name], asked_at, due_at, default}, with a
    petition_id where a petition is to be approved.
    """
    async with call.bus(ANSWERS, create=False) as bus, bus.transaction() as transaction:
        asks = await open_asks(transaction)
    if call.output.json:
        names = ("general", "question", "choices", "people", "asked_at", "due_at", "default")
        shown = [{"task_id": ask.id, **{name: getattr(ask, name) for name in names}} for ask in asks]
        about = [{"petition_id": ask.petition} if ask.petition else {} for ask in asks]
        call.output.document([one | more for one, more in zip(shown, about, strict=True)])
    elif asks:
        columns = ("task", "question", "choices", "since", "until")
        rows = [(ask.id, ask.question, ", ".join(ask.choices) or None, ask.asked_at, ask.due_at) for ask in asks]
        call.output.table(columns, rows)
        call.output.say("Answer with: kingdom answer TASK TEXT")
    else:
        call.output.say("Nobody waits for an answer.")
