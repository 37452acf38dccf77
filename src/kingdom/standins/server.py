"""The common server of all stand-ins, with faults on demand and a control interface."""

import argparse
import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kingdom.standins.faults import FaultQueue, ServerFault
from kingdom.standins.state_file import StateFile

STATE_FILE = web.AppKey("state_file", StateFile)
FAULTS = web.AppKey("faults", FaultQueue)
# The prefix of the control interface for tests and the demo. The real servers have no such paths.
CONTROL = "/_control"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A stand-in that accepts requests."""

    url: str
    application: web.Application
    runner: web.AppRunner

    async def stop(self) -> None:
        """Stop the server. Its state stays in the file."""
        await self.runner.cleanup()


def new_application(state_file: StateFile) -> web.Application:
    """Return a server with the control interface and faults, but without other routes."""
    application = web.Application(middlewares=[_inject_fault], client_max_size=32 << 20)
    application[STATE_FILE] = state_file
    application[FAULTS] = FaultQueue()
    application.router.add_get(f"{CONTROL}/state", _show_state)
    application.router.add_get(f"{CONTROL}/calls", _show_calls)
    application.router.add_post(f"{CONTROL}/faults", _add_faults)
    return application


async def start(application: web.Application, port: int = 0) -> RunningServer:
    """Listen on the loopback interface. Port 0 selects a free port."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    return RunningServer(f"http://127.0.0.1:{runner.addresses[0][1]}", application, runner)


def run_as_program(name: str, build: Callable[[Path], web.Application]) -> None:
    """Serve until SIGTERM. The first line of output is `{"url": …}`."""
    parser = argparse.ArgumentParser(prog=f"python -m kingdom.standins.{name}")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, required=True, help="the file with the state of the server")
    arguments = parser.parse_args()
    asyncio.run(_serve(build(arguments.state), arguments.port))


async def _serve(application: web.Application, port: int) -> None:
    stopped = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopped.set)
    running = await start(application, port)
    print(json.dumps({"url": running.url}), flush=True)  # noqa: T201 - tells the parent process the port
    await stopped.wait()
    await running.stop()


@web.middleware
async def _inject_fault(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path.startswith(CONTROL):
        return await handler(request)
    fault = request.app[FAULTS].take(request.method, request.path)
    if fault and fault.kind == "refuse":
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        return web.json_response({"message": "fault on demand"}, status=fault.status, headers=headers)
    answer = await handler(request)
    if fault is None:
        return answer
    if fault.kind == "delay":
        await asyncio.sleep(fault.seconds)
    if fault.kind == "lose_answer":
        _abort_connection(request)
    if fault.kind == "truncate" and isinstance(answer, web.Response):
        return await _send_half(request, answer)
    return answer


async def _send_half(request: web.Request, answer: web.Response) -> web.StreamResponse:
    """Send half of an answer with the full content length, and close the connection."""
    body = answer.body if isinstance(answer.body, bytes) else b""
    cut = web.StreamResponse(status=answer.status, headers=answer.headers)
    cut.content_length = len(body)
    await cut.prepare(request)
    await cut.write(body[: len(body) // 2])
    _abort_connection(request)
    return cut


def _abort_connection(request: web.Request) -> None:
    if request.transport:
        request.transport.abort()


async def _show_state(request: web.Request) -> web.Response:
    return web.json_response(request.app[STATE_FILE].state)


async def _show_calls(request: web.Request) -> web.Response:
    return web.json_response(request.app[STATE_FILE].calls)


async def _add_faults(request: web.Request) -> web.Response:
    faults = msgspec.json.decode(await request.read(), type=list[ServerFault])
    request.app[FAULTS].add(faults)
    return web.json_response({"added": len(faults)})
