"""Turns that end though their agent could go on: later, with more money, or with the word of a person."""

from kingdom.text import sentence
from kingdom.workflow.model.answers import FailedTurn, QueryFailed
from kingdom.workflow.model.proceed import ask_for_money, want
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.work import Task
from kingdom.workflow.model.workflow import GO_ON, STOP, About, Question, Wish

_ERROR_LENGTH_MAX = 1_000
# A vendor that never lets the agent work is a matter for a person.
_PARKINGS_MAX = 5


def is_held_up(step: Step, task: Task, answer: FailedTurn) -> bool:
    """Let the run wait where its agent did not fail but cannot go on now; False where it simply failed."""
    if answer.throttled_until:
        _park(step, task, answer)
    elif answer.over_budget:
        ask_for_money(step, task)
    elif isinstance(answer, QueryFailed) and answer.looping and not task.query.looped:
        task.query.looped = True
        _ask_a_person(step, task, answer.error)
    else:
        return False
    return True


def _park(step: Step, task: Task, answer: FailedTurn) -> None:
    """Let the run wait for its vendor; who waited often without any answer asks a person instead."""
    until = answer.throttled_until
    reason = answer.error[:_ERROR_LENGTH_MAX]
    if task.parkings >= _PARKINGS_MAX:
        _ask_a_person(step, task, f"it has waited {task.parkings} times for its vendor without an answer: {reason}")
        task.parkings = 0
        return
    task.parkings += 1
    step.workflow.parked_until = until
    want(step, Wish.AWAIT, f"{reason}; it goes on by itself at {until:%Y-%m-%d %H:%M %Z}")


def _ask_a_person(step: Step, task: Task, error: str) -> None:
    cause = sentence(error[:_ERROR_LENGTH_MAX])
    text = f"{cause} Shall it {GO_ON}, or {STOP}? Anything else is handed to the agent as advice."
    step.workflow.question = Question(task_id=task.id, text=text, choices=(GO_ON, STOP), about=About.LOOP)
    want(step, Wish.AWAIT, text)
