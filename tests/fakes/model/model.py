"""The model itself: which response the script in a conversation asks for next."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.model.calling import Way, by_shell, nothing, tool_call
from tests.fakes.model.conversation import Prompted, Request
from tests.fakes.model.move import Call, Move, Refusal, Text
from tests.fakes.model.prices import usage_for
from tests.fakes.model.progress import Progress, call_id, progress_of
from tests.fakes.model.steps import Step, WrongScript, filled

_WAITING = "I wait for the reply."
_WRONG = 400
_WORD_SECONDS = 0.02


@dataclass(slots=True)
class Model:
    """Follows scripts; remembers only what must not happen again."""

    _times: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def move(self, request: Request) -> Move:
        """Return the response to a request."""
        try:
            progress = progress_of(request.entries)
        except WrongScript as error:
            return Move(refusal=Refusal(status=_WRONG, message=str(error)))
        if progress is None:
            return Move(texts=(Text(_echo(request)),))
        if progress.later:
            return Move(texts=(Text(_report(progress) or _echo(request)),))
        if progress.failure is not None:
            return Move(refusal=Refusal(status=_WRONG, message=progress.failure))
        if progress.waiting:
            return Move(texts=(Text(_WAITING),))
        return self._next(progress, request)

    def _next(self, progress: Progress, request: Request) -> Move:
        """Return everything up to the next tool, error or silence as one response, or else the last one."""
        move = Move()
        for number, written in enumerate(progress.steps[progress.done :], start=progress.done + 1):
            step = _with_reply(written, progress.reply)
            key = (request.session, number, json.dumps(written, sort_keys=True))
            if self._times[key] >= _limit(step) or (step.get("say") or step.get("stream")) in progress.texts:
                continue
            if _comes_before(move, step):
                return replace(move, call=_call(nothing, {}, request, number - 1))
            self._times[key] += 1
            gathered = _gathered(move, step, request.model)
            if gathered is None:
                way = by_shell if progress.refused == number else tool_call
                return _cut_off(move, step) or replace(move, call=_call(way, step, request, number))
            move = gathered
        return replace(move, texts=(*move.texts, Text(progress.answer)))


def _limit(step: Step) -> float:
    """Return how often a step may happen in a session."""
    return 1 if step.get("first_time_only") else step.get("times", math.inf)


def _gathered(move: Move, step: Step, model: str) -> Move | None:
    """Return a response with one more step in it, or None if the step is more than words and figures."""
    match step:
        case {"say": text}:
            return replace(move, texts=(*move.texts, Text(text)))
        case {"stream": text}:
            return replace(move, texts=(*move.texts, Text(text, step.get("every", _WORD_SECONDS))))
        case {"cost": cost}:
            return replace(move, usage=_sum(move.usage, usage_for(cost, model)))
        case {"usage": usage}:
            return replace(move, usage=_sum(move.usage, usage))
        case {"delay": seconds}:
            return replace(move, delay=move.delay + seconds)
        case {"drop_stream": drops}:
            return replace(move, drops=drops)
        case {"answer": _} | {"report": _}:
            return move
    return None


def _comes_before(move: Move, step: Step) -> bool:
    """Return whether a response must come before a step: an error has no words, and neither it nor silence costs."""
    return ("fail" in step and bool(move.texts or move.usage)) or (
        _cut_off(move, step) is not None and bool(move.usage)
    )


def _cut_off(move: Move, step: Step) -> Move | None:
    """Return the response to which a step puts an end, or None if the step is a tool."""
    if "fail" in step or "model_error" in step:
        return replace(move, refusal=_refusal(step))
    return replace(move, hangs=True) if step.get("hang") is True else None


def _call(way: Way, step: Step, request: Request, number: int) -> Call:
    made = call_id(request.call_prefix, number, second_way=way is by_shell)
    tool, arguments = way(step, request, made)
    return Call(id=made, tool=tool, arguments=arguments)


def _refusal(step: Step) -> Refusal:
    headers = {name: str(value) for name, value in step.get("headers", {}).items()}
    if "retry_after" in step:
        headers["retry-after"] = str(step["retry_after"])
    status = step.get("model_error", _WRONG)
    message = step.get("fail") or step.get("message") or f"the script asks for error {status}"
    return Refusal(status=status, message=message, headers=headers)


def _with_reply(step: Step, reply: str) -> Step:
    # A reply is foreign text and has no say in paths and commands.
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
    prompts = [entry.text for entry in request.entries if isinstance(entry, Prompted)]
    first_line = prompts[-1].strip().partition("\n")[0] if prompts else ""
    return f"I was asked: {first_line}"
