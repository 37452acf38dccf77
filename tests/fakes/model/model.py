"""The model itself: it chooses the next response according to the script in a conversation."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.model.answer import Call, ModelAnswer, Refusal, Text
from tests.fakes.model.calling import ToolChoice, by_shell, nothing, tool_call
from tests.fakes.model.conversation import PromptEntry, Request
from tests.fakes.model.prices import usage_for
from tests.fakes.model.progress import Progress, call_id, progress_of
from tests.fakes.model.steps import Step, WrongScript, filled

_WAITING = "I wait for the reply."
_WRONG = 400
_WORD_SECONDS = 0.02


@dataclass(slots=True)
class Model:
    """Follows scripts. It remembers only the steps that are limited to a number of times."""

    _times: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def answer(self, request: Request) -> ModelAnswer:
        """Return the response to a request."""
        try:
            progress = progress_of(request.entries)
        except WrongScript as error:
            return ModelAnswer(refusal=Refusal(status=_WRONG, message=str(error)))
        if progress is None:
            return ModelAnswer(texts=(Text(_echo(request)),))
        if progress.later:
            return ModelAnswer(texts=(Text(_report(progress) or _echo(request)),))
        if progress.failure is not None:
            return ModelAnswer(refusal=Refusal(status=_WRONG, message=progress.failure))
        if progress.waiting:
            return ModelAnswer(texts=(Text(_WAITING),))
        return self._next(progress, request)

    def _next(self, progress: Progress, request: Request) -> ModelAnswer:
        """Return the next steps up to a tool call, an error or a hang as one response. The last steps end the turn."""
        answer = ModelAnswer()
        for number, written in enumerate(progress.steps[progress.done :], start=progress.done + 1):
            step = _with_reply(written, progress.reply)
            key = (request.session, number, json.dumps(written, sort_keys=True))
            if self._times[key] >= _limit(step) or (step.get("say") or step.get("stream")) in progress.texts:
                continue
            if _must_be_sent_before(answer, step):
                return replace(answer, call=_call(nothing, {}, request, number - 1))
            self._times[key] += 1
            extended = _with_step(answer, step, request.model)
            if extended is None:
                choose_tool = by_shell if progress.refused == number else tool_call
                return _ended_by(answer, step) or replace(answer, call=_call(choose_tool, step, request, number))
            answer = extended
        return replace(answer, texts=(*answer.texts, Text(progress.answer)))


def _limit(step: Step) -> float:
    """Return how often a step may happen in a session."""
    return 1 if step.get("first_time_only") else step.get("times", math.inf)


def _with_step(answer: ModelAnswer, step: Step, model: str) -> ModelAnswer | None:
    """Return the response with one more step added, or None if the step is not a text or a usage."""
    match step:
        case {"say": text}:
            return replace(answer, texts=(*answer.texts, Text(text)))
        case {"stream": text}:
            return replace(answer, texts=(*answer.texts, Text(text, step.get("every", _WORD_SECONDS))))
        case {"cost": cost}:
            return replace(answer, usage=_sum(answer.usage, usage_for(cost, model)))
        case {"usage": usage}:
            return replace(answer, usage=_sum(answer.usage, usage))
        case {"delay": seconds}:
            return replace(answer, delay=answer.delay + seconds)
        case {"drop_stream": drops}:
            return replace(answer, drops=drops)
        case {"answer": _} | {"report": _}:
            return answer
    return None


def _must_be_sent_before(answer: ModelAnswer, step: Step) -> bool:
    """Return whether the response must be sent before a step.

    An error contains neither text nor usage, and a response that hangs contains no usage.
    """
    return ("fail" in step and bool(answer.texts or answer.usage)) or (
        _ended_by(answer, step) is not None and bool(answer.usage)
    )


def _ended_by(answer: ModelAnswer, step: Step) -> ModelAnswer | None:
    """Return the response that this step ends, or None if the step is a tool call."""
    if "fail" in step or "model_error" in step:
        return replace(answer, refusal=_refusal(step))
    return replace(answer, hangs=True) if step.get("hang") is True else None


def _call(choose_tool: ToolChoice, step: Step, request: Request, number: int) -> Call:
    made = call_id(request.call_prefix, number, second_way=choose_tool is by_shell)
    tool, arguments = choose_tool(step, request, made)
    return Call(id=made, tool=tool, arguments=arguments)


def _refusal(step: Step) -> Refusal:
    headers = {name: str(value) for name, value in step.get("headers", {}).items()}
    if "retry_after" in step:
        headers["retry-after"] = str(step["retry_after"])
    status = step.get("model_error", _WRONG)
    message = step.get("fail") or step.get("message") or f"the script asks for error {status}"
    return Refusal(status=status, message=message, headers=headers)


def _with_reply(step: Step, reply: str) -> Step:
    # A reply is untrusted text, so it is not filled into paths and commands.
    kept = {"write", "append", "run", "wait_for", "call"}
    return {key: value if key in kept else filled(value, reply) for key, value in step.items()}


def _sum(one: Any, other: Any) -> dict[str, Any]:
    total = dict(one)
    for name, value in other.items():
        total[name] = _sum(total.get(name, {}), value) if isinstance(value, dict) else total.get(name, 0) + value
    return total


def _report(progress: Progress) -> str | None:
    reports = [str(filled(step["report"], progress.reply)) for step in progress.steps if "report" in step]
    return reports[-1] if reports and progress.later == 1 else None


def _echo(request: Request) -> str:
    prompts = [entry.text for entry in request.entries if isinstance(entry, PromptEntry)]
    first_line = prompts[-1].strip().partition("\n")[0] if prompts else ""
    return f"I was asked: {first_line}"
