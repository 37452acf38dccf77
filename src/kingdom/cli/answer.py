"""`kingdom answer`: a person's answer to a question."""

from typing import Annotated

import typer

from kingdom.bus.port import Transaction
from kingdom.cli.command import Call, command
from kingdom.cli.inbox import ANSWERS
from kingdom.clock import utc_now
from kingdom.court.asks import Ask
from kingdom.court.envoy.answers import Answer, Taken, find_ask, open_asks, take_answer
from kingdom.errors import NotFound, Permanent
from kingdom.workflow.records import change

app = typer.Typer(add_completion=False)
_SOURCE = "cli"
# So much of the id of a petition is asked for at least.
_TAIL_MIN = 6


@command(app, "answer")
async def answer(
    call: Call,
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="Who asks, as `kingdom inbox` shows it; of a petition its last letters do."
        ),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer: one of the choices, or words.")],
    *,
    person: Annotated[str, typer.Option("--as", help="Who answers; else you, by the name of your account.")] = "",
) -> None:
    """Answer a question. Of several answers the first one counts.

    Example: kingdom answer task-20260207-001 approve

    Example: kingdom answer task-20260207-001 "use the other branch" --as dana

    JSON: {task_id, event_id, question}.
    """
    who = person or call.settings.actor.partition("@")[0]

    async def act(transaction: Transaction) -> tuple[Ask, Answer, Taken]:
        ask = await _ask(transaction, task)
        now = utc_now()
        given = Answer(source=_SOURCE, task_id=ask.id, text=text, person=who, at=f"{now.timestamp():.6f}")
        return ask, given, await take_answer(transaction, given, now)

    async with call.bus(ANSWERS, create=False) as bus:
        ask, given, taken = await change(bus, act)
    if taken.refusal:
        raise Permanent(f"{ask.id} takes no such answer: {taken.refusal}; `kingdom inbox` shows what is open")
    if call.output.json:
        call.output.document({"task_id": ask.id, "event_id": given.event_id, "question": ask.question})
    call.output.say(f"{ask.id} was answered: {ask.question} → {text}")


async def _ask(transaction: Transaction, task: str) -> Ask:
    """Return the question of an assignment or a petition, or say which ones there are."""
    ask = await find_ask(transaction, task)
    if ask is None:
        open_ones = await open_asks(transaction)
        meant = [each for each in open_ones if each.petition and len(task) >= _TAIL_MIN and each.id.endswith(task)]
        if len(meant) == 1:
            return meant[0]
        waiting = ", ".join(each.id for each in open_ones)
        raise NotFound(f"{task} asks nothing; an answer is waited for by: {waiting or 'nobody'}")
    return ask
