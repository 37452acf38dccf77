"""Suspend a turn that did not fail but cannot continue now, because of a usage limit, the budget, or a loop."""

from kingdom.text import sentence
from kingdom.workflow.model.messages.answers import FailedTurn, QueryFailed
from kingdom.workflow.model.run.work import Task
from kingdom.workflow.model.run.workflow import GO_ON, STOP, QuestionTopic, RunQuestion, StopOutcome
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import ask_for_budget, request_stop

_ERROR_LENGTH_MAX = 1_000
# If a Task has waited this many times for the vendor without getting an answer, a person is asked.
_WAITS_MAX = 5


def suspend_turn(step: Step, task: Task, answer: FailedTurn) -> bool:
    """Suspend the run if its agent can continue later. Return False if it cannot, so the turn has failed."""
    if answer.throttled_until:
        _park(step, task, answer)
    elif answer.over_budget:
        ask_for_budget(step, task)
    elif isinstance(answer, QueryFailed) and answer.looping and not task.query.looped:
        task.query.looped = True
        _ask_a_person(step, task, answer.error)
    else:
        return False
    return True


def _park(step: Step, task: Task, answer: FailedTurn) -> None:
    """Wait until the vendor accepts requests again, or ask a person after too many waits."""
    until = answer.throttled_until
    reason = answer.error[:_ERROR_LENGTH_MAX]
    if task.times_parked >= _WAITS_MAX:
        _ask_a_person(step, task, f"it has waited {task.times_parked} times for its vendor without an answer: {reason}")
        task.times_parked = 0
        return
    task.times_parked += 1
    step.workflow.parked_until = until
    request_stop(step, StopOutcome.AWAIT, f"{reason}; it goes on by itself at {until:%Y-%m-%d %H:%M %Z}")


def _ask_a_person(step: Step, task: Task, error: str) -> None:
    cause = sentence(error[:_ERROR_LENGTH_MAX])
    text = f"{cause} Should it {GO_ON}, or {STOP}? Any other answer goes to the agent as advice."
    step.workflow.question = RunQuestion(task_id=task.id, text=text, choices=(GO_ON, STOP), topic=QuestionTopic.LOOP)
    request_stop(step, StopOutcome.AWAIT, text)
