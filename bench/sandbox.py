"""Measure the cost of a sandbox for one prompt of Claude Code and for a large commit.

`python -m bench.sandbox` exits 1 if a bound does not hold. The model is a server in this process. The commit is
compared with plain git in a checkout.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import claude_agent_sdk
from aiohttp import web

from bench.servers import exit_on_sigterm
from kingdom.soldiers.checkouts.git import run_git
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor

# The bounds: the time with a sandbox relative to the time without one.
BOUND = 1.3
COMMIT_BOUND = 1.5
# The files of a commit, and the lines of a file.
_FILES = 3000
_LINES = 20
_CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
_KEY = "sk-of-the-house"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "DISABLE_AUTOUPDATER": "1",
}
_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-bench", "content": []}
_USAGE = {"input_tokens": 1, "output_tokens": 1}
_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": {**_MESSAGE, "stop_reason": None, "usage": _USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": _USAGE},
    {"type": "message_stop"},
)


async def measure(pairs: int, handicap: float) -> dict[str, Any]:
    """Return the seconds that Claude Code takes for a prompt, alternating with and without a sandbox."""
    taken: dict[str, list[float]] = {"without": [], "with": []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            _model() as url,
            ModelProxy(folder / "gate", [Upstream(vendor=Vendor.ANTHROPIC, url=url, key=_KEY)]) as proxy,
        ):
            strict = Sandbox(
                profile=SandboxProfile.STRICT,
                writable=(folder / "with",),
                model_socket=proxy.socket,
                limits=AGENT_LIMITS,
            )
            ways = {"without": Sandbox(profile=SandboxProfile.OFF, url=url), "with": strict}
            for way in ways:
                (folder / way).mkdir()
            # The first pair fills the page cache and is not counted.
            for pair in range(pairs + 1):
                for way in sorted(ways, reverse=bool(pair % 2)):
                    seconds = await _start(ways[way], folder / way, handicap if way == "with" else 0.0)
                    if pair:
                        taken[way].append(seconds)
    return _figures(taken)


async def measure_commits(pairs: int, handicap: float) -> dict[str, Any]:
    """Return the seconds that a commit of many new files takes, alternating with and without a sandbox."""
    taken: dict[str, list[float]] = {"without": [], "with": []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        await _make_source(folder / "app", folder)
        trees = RunCheckouts(folder / "repositories", home=folder)
        for pair in range(pairs):
            for way in sorted(taken, reverse=bool(pair % 2)):
                tree = _tree(folder, f"{way}{pair}")
                await trees.prepare([tree])
                _write_files(tree.path, f"{way} {pair}")
                begun = time.perf_counter()
                if way == "with":
                    await trees.commit([tree], "work")
                else:
                    await run_git("add", "--all", cwd=tree.path, home=folder)
                    await run_git("commit", "--quiet", "-m", "work", cwd=tree.path, home=folder)
                taken[way].append(time.perf_counter() - begun + (handicap if way == "with" else 0.0))
                assert (await run_git("log", "-1", "--format=%s", cwd=tree.path, home=folder)).strip() == "work"
    return _figures(taken)


def _figures(taken: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    fastest = {way: min(seconds) for way, seconds in taken.items()}
    return {
        "pairs": len(taken["with"]),
        "fastest seconds": {way: round(seconds, 3) for way, seconds in fastest.items()},
        "median seconds": {way: round(statistics.median(seconds), 3) for way, seconds in taken.items()},
        # Compare the fastest runs: other load only makes runs slower, never faster.
        "ratio": round(fastest["with"] / fastest["without"], 3),
    }


async def _make_source(path: Path, home: Path) -> None:
    _write_files(path, "source", files=1)
    for arguments in (("init", "--quiet", "-b", "main"), ("add", "--all"), ("commit", "--quiet", "-m", "first")):
        await run_git(*arguments, cwd=path, home=home)


def _tree(folder: Path, name: str) -> CheckoutSpec:
    return CheckoutSpec(
        id=name,
        git_id="app",
        url=str(folder / "app"),
        checkpoint_remote="",
        base_branch="main",
        branch=f"kingdom/{name}",
        path=folder / "trees" / name,
    )


def _write_files(checkout: Path, words: str, files: int = _FILES) -> None:
    for number in range(files):
        file = checkout / f"folder{number % 50}" / f"file{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{words}, file {number}, line {line}\n" for line in range(_LINES)))


async def _start(sandbox: Sandbox, folder: Path, handicap: float) -> float:
    begun = time.perf_counter()
    program = await start_program(
        [str(_CLAUDE), "-p", "Say done.", "--output-format=json"],
        cwd=folder,
        environment={**_ENVIRONMENT, "HOME": str(folder), "ANTHROPIC_BASE_URL": sandbox.url},
        errors=folder / "errors",
        contained=sandbox.profile is not SandboxProfile.OFF,
        sandbox=sandbox,
    )
    try:
        program.close_input()
        lines = [line async for line in program.lines()]
        code = await program.wait()
        seconds = time.perf_counter() - begun
    finally:
        await program.kill()
    assert code == 0, (lines, program.stderr_tail())
    assert json.loads(lines[-1])["result"] == "done", lines
    return seconds + handicap


@asynccontextmanager
async def _model() -> AsyncIterator[str]:
    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/v1/messages", _answer)
    application.router.add_get("/", _here)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _here(_: web.Request) -> web.Response:
    return web.Response()


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.read()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in _EVENTS:
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    await response.write_eof()
    return response


def main() -> int:
    """Return 0 if the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="how many prompts to measure with and without (default 9)")
    parser.add_argument("--bound", type=float, default=BOUND, help=f"the bound for a prompt (default {BOUND})")
    parser.add_argument(
        "--commits", type=int, default=5, help="how many commits to measure with and without (default 5)"
    )
    parser.add_argument(
        "--commit-bound", type=float, default=COMMIT_BOUND, help=f"the bound for a commit (default {COMMIT_BOUND})"
    )
    parser.add_argument("--handicap", type=float, default=0.0, help="add these seconds to every time with a sandbox")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    options = parser.parse_args()
    start = asyncio.run(measure(options.pairs, options.handicap))
    commit = asyncio.run(measure_commits(options.commits, options.handicap))
    figures = {"start": {**start, "bound": options.bound}, "commit": {**commit, "bound": options.commit_bound}}
    broken = {what: each for what, each in figures.items() if each["ratio"] > each["bound"]}
    for what, each in broken.items():
        sys.stderr.write(f"bound not kept: {what} with a sandbox: {each['ratio']} > {each['bound']}\n")
    holds = not broken
    line = json.dumps({**figures, "holds": holds})
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return int(not holds)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
