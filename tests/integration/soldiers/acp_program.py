"""An agent that speaks ACP and does what its prompt says: one step as a JSON object per line.

{"update": {...}}        sends an update of the session
{"permission": [...]}    asks for permission for `command` with these kinds of options, and says the result
{"line": "text"}         writes this line unchanged
{"until_cancelled": 2}   ignores cancellations until the second one, and ends the turn as cancelled
{"error": {...}}         ends the turn with an error
{"exit": 3}              ends the program
{"end": {...}}           ends the turn with this response

Every request is written to `requests.jsonl`. A session named `lost` cannot be resumed. A loaded session replays its
history.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

Message = dict[str, Any]

_cancellations = threading.Semaphore(0)
_granted: list[Any] = []
_answered = threading.Event()
_writing = threading.Lock()


def _write(*messages: Message | str) -> None:
    """Write messages without buffering."""
    lines = (each if isinstance(each, str) else json.dumps({"jsonrpc": "2.0", **each}) for each in messages)
    text = "".join(f"{line}\n" for line in lines)
    with _writing:
        sys.stdout.write(text)
        sys.stdout.flush()


def _updating(session: str, update: Message) -> Message:
    return {"method": "session/update", "params": {"sessionId": session, "update": update}}


def _saying(session: str, text: str) -> Message:
    return _updating(session, {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})


def _ask(session: str, kinds: list[str], command: str) -> None:
    options = [{"optionId": f"option-{kind}", "name": kind, "kind": kind} for kind in kinds]
    call = {"toolCallId": "asked", "title": "Do it", "kind": "execute", "rawInput": {"command": command}}
    params = {"sessionId": session, "options": options, "toolCall": call}
    _write({"id": "permission", "method": "session/request_permission", "params": params})
    _answered.wait()
    _write(_saying(session, json.dumps(_granted[-1]["outcome"])))


def _take_turn(request: Message) -> None:
    session = request["params"]["sessionId"]
    for line in request["params"]["prompt"][0]["text"].splitlines():
        step = json.loads(line) if line.startswith("{") else {}
        match step:
            case {"update": update}:
                _write(_updating(session, update))
            case {"permission": kinds}:
                _ask(session, kinds, step.get("command", "make"))
            case {"line": text}:
                _write(text)
            case {"until_cancelled": times}:
                for _ in range(times):
                    _cancellations.acquire()
                _write({"id": request["id"], "result": {"stopReason": "cancelled", **step.get("with", {})}})
                return
            case {"error": error}:
                _write({"id": request["id"], "error": error})
                return
            case {"exit": code}:
                sys.stderr.write("I cannot go on\n")
                sys.stderr.flush()
                os._exit(code)
            case {"end": response}:
                _write({"id": request["id"], "result": response})
                return
    _write(_saying(session, "done"))
    _write({"id": request["id"], "result": {"stopReason": "end_turn"}})


def _answer(request: Message) -> None:
    params = request.get("params", {})
    match request.get("method"):
        case "initialize":
            _write({"id": request["id"], "result": {"protocolVersion": 1, "agentCapabilities": {}}})
        case "session/new":
            _write({"id": request["id"], "result": {"sessionId": uuid4().hex}})
        case "session/resume" if params["sessionId"].endswith("lost"):
            error = {"code": -32603, "message": "Internal error", "data": {"details": "no such thread"}}
            _write({"id": request["id"], "error": error})
        case "session/load":
            # At once, because the client waits only a moment for the replay of a session.
            _write({"id": request["id"], "result": {}}, _saying(params["sessionId"], "what I said before"))
        case "session/prompt":
            while _cancellations.acquire(blocking=False):
                pass
            threading.Thread(target=_take_turn, args=(request,), daemon=True).start()
        case "session/cancel":
            _cancellations.release()
        case None:
            _granted.append(request["result"])
            _answered.set()
        case _:
            _write({"id": request["id"], "result": {}})


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        with Path("requests.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        _answer(json.loads(line))


if __name__ == "__main__":
    main()
