"""Choose the tool of an agent, and its arguments, for a step of the script."""

import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from tests.fakes.model.conversation import Request
from tests.fakes.model.steps import Step

ToolCall = tuple[str, dict[str, Any]]
# A function that returns the tool call for a step, a request and the id of the call.
ToolChoice = Callable[[Step, Request, str], ToolCall]

# Agents refuse to sleep in the shell, and limit how long a command may take.
_WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
_WAIT_MILLISECONDS = 60_000
# An agent writes its transcript a little later than it acts, so the kill waits until this call is written there.
# The parent of the shell is the agent. Some agents run inside other programs of their vendor.
_END_AGENT = """\
import os, pathlib, signal, sys, time
_, name, agent, call = sys.argv
homes = {os.environ.get(home, "") for home in ("HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR")} - {""}
def is_written():
    for path in (path for home in homes for path in pathlib.Path(home).rglob("*")):
        try:
            if path.is_file() and path.stat().st_mtime > began - 60 and call.encode() in path.read_bytes():
                return True
        except OSError:
            pass
began = time.time()
while not is_written() and time.time() < began + 300: time.sleep(0.02)
pid, found = int(agent), []
while pid and (not found or b"node_modules/" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()):
    found.insert(0, pid)
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
for pid in found: os.kill(pid, signal.Signals[name])"""


def tool_call(step: Step, request: Request, call: str) -> ToolCall:
    """Return the tool call that executes a step."""
    match step:
        case {"call": str(tool)}:
            return tool, step.get("args", {})
        case {"petition": kind}:
            return _own_tool(request, "petition", {"kind": kind, "body": step.get("body", {})})
        case {"ask": question}:
            return _own_tool(request, "ask_human", {"question": question, "choices": step.get("choices", [])})
        case {"result": result}:
            return _own_tool(request, "report_result", result)
        case {"remember": memory}:
            return _own_tool(request, "remember", memory if isinstance(memory, dict) else {"text": memory})
        case {"write": path}:
            whole = str(PurePosixPath(request.folder) / path)
            for tool, path_name in (("Write", "file_path"), ("write_file", "file_path"), ("write", "filePath")):
                if tool in request.tools:
                    return tool, {path_name: whole, "content": step.get("text", "")}
    return by_shell(step, request, call)


def by_shell(step: Step, request: Request, call: str) -> ToolCall:
    """Return the shell command that executes a step."""
    match step:
        case {"run": str(command)}:
            return _shell(request, command)
        case {"write": path}:
            return _shell(request, _print_to(path, step.get("text", ""), ">"))
        case {"append": path}:
            return _shell(request, _print_to(path, step.get("text", ""), ">>"))
        case {"wait_for": path}:
            return _shell(request, shlex.join(["python3", "-c", _WAIT, path]))
        case {"hang": "deaf"}:
            return _shell(request, f"python3 -c {shlex.quote(_END_AGENT)} SIGSTOP $PPID {call}")
        case {"crash": _}:
            return _shell(request, f"python3 -c {shlex.quote(_END_AGENT)} SIGKILL $PPID {call}")
    raise AssertionError(f"{step} cannot be executed by a shell")


def nothing(_step: Step, request: Request, _call: str) -> ToolCall:
    """Return a command that does nothing, for a response that must not be the last one of the turn."""
    return _shell(request, "true")


def _print_to(path: str, text: str, redirection: str) -> str:
    folder = str(PurePosixPath(path).parent)
    return f"mkdir -p {shlex.quote(folder)} && printf %s {shlex.quote(text)} {redirection} {shlex.quote(path)}"


def _shell(request: Request, command: str) -> ToolCall:
    description = command[:60]
    if "exec_command" in request.tools:
        return "exec_command", {"cmd": command, "yield_time_ms": _WAIT_MILLISECONDS}
    if "shell_command" in request.tools:
        return "shell_command", {"command": command}
    if "shell" in request.tools:
        return "shell", {"command": ["bash", "-lc", command]}
    tool = next((name for name in ("bash", "run_shell_command") if name in request.tools), "Bash")
    return tool, {"command": command, "description": description}


def _own_tool(request: Request, tool: str, arguments: dict[str, Any]) -> ToolCall:
    return request.own_tool_name.format(tool), arguments
