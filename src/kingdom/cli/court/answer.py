"""`kingdom answer`: answer a question."""

from typing import Annotated

import typer

from kingdom.actions.questions import answer_question
from kingdom.bus.port import Transaction
from kingdom.cli.court.declarations import log_to_tasks
from kingdom.cli.court.inbox import ANSWERS_APPLICATION
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import LAST, choose_id
from kingdom.clock import utc_now
from kingdom.court.envoy.answers import PersonAnswer, find_question, open_questions
from kingdom.court.questions import HumanQuestion
from kingdom.errors import NotFound
from kingdom.views.questions import AnswerResult
from kingdom.workflow.records import run_transaction

app = typer.Typer(add_completion=False)
_SOURCE = "cli"
_PREFIX = "task-"
# A petition is identified by at least this many characters at the end of its id.
_TAIL_MIN = 6


@command(app, "answer", result=one(AnswerResult))
async def answer(
    call: CommandCall,
    task: Annotated[
        str,
        typer.Argument(
            metavar="ASSIGNMENT",
            help="The id in `kingdom inbox`, or its beginning or end; for a petition at least its last six characters."
            " `last` is the newest question.",
        ),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer: one of the choices, or free text.")],
    *,
    person: Annotated[str, typer.Option("--as", help="The person who answers; by default your account name.")] = "",
    words: Annotated[
        bool, typer.Option("--words", help="Take TEXT as free text, even if it resembles a choice.")
    ] = False,
) -> None:
    """Answer a question. If there are several answers, the first one counts.

    Example: kingdom answer task-20260207-001 approve

    Example: kingdom answer last "use the other branch" --as dana

    JSON: {task_id, event_id, question}.
    """
    who = person or call.settings.actor.partition("@")[0]

    async def act(transaction: Transaction) -> AnswerResult:
        ask, now = await _resolve_question(transaction, task), utc_now()
        given = PersonAnswer(source=_SOURCE, question_id=ask.id, text=text, person=who, at=f"{now.timestamp():.6f}")
        return await answer_question(transaction, ask, given, now, words=words)

    log_to_tasks(call)
    async with call.bus(ANSWERS_APPLICATION, create=False) as bus:
        result = await run_transaction(bus, act)
    if call.output.json:
        call.output.document(result)
    call.output.say(f"Answered {result.task_id}: {result.question} → {text}")


async def _resolve_question(transaction: Transaction, task: str) -> HumanQuestion:
    """Return the question of an assignment or petition, or raise an error that lists the open questions."""
    if ask := await find_question(transaction, task):
        return ask
    open_ones = {each.id: each for each in await open_questions(transaction)}
    if not open_ones:
        raise NotFound("there are no open questions: `kingdom inbox --watch` shows new ones")
    if task == LAST:
        return list(open_ones.values())[-1]
    unknown = f"{task} has no open question; these have one: {', '.join(open_ones)}"
    meant = {
        each.id: each.general for each in open_ones.values() if not each.petition or _identifies_petition(task, each)
    }
    return open_ones[choose_id(task, meant, prefix=_PREFIX, unknown=unknown)]


def _identifies_petition(text: str, ask: HumanQuestion) -> bool:
    """Return whether a text is a long enough end of a petition's id. The beginning only identifies the assignment."""
    return len(text) >= _TAIL_MIN and ask.id.endswith(text)
