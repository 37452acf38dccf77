"""The processes of a whole court: its stand-ins and roles, and the people who see a pull request through."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import aiohttp
import msgspec
from aiohttp import web

from bench.chaos.variants import replace as put_in_place
from bench.court.chaos import SETTINGS
from bench.court.court_processes import CHANNEL, ROLES, STANDINS, CourtProcesses, make_remote
from bench.court.until_merged import GIT_ID, REPO, FollowedPull, open_pull, prepare_github, write_general
from bench.crash_sweep.process import Play, accept_sigterm
from bench.crash_sweep.roles import until_idle
from bench.crash_sweep.stage import HOST_NAME, Stage
from bench.crash_sweep.steps import Steps
from bench.crash_sweep.swept import SweptAgents, count_requests, count_steps
from kingdom.bootstrap import open_bus
from kingdom.bus.app import Application
from kingdom.bus.port import Bus
from kingdom.cli.framework.command import CommandCall
from kingdom.cli.framework.long_running import LOOPBACK, run_until_stopped
from kingdom.cli.framework.output import CommandOutput
from kingdom.cli.machine import role as role_command
from kingdom.cli.machine.role import CourtRole, run_court_role
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.realm import Realm
from kingdom.roles import (
    chamberlain,  # noqa: F401 - every role is loaded here, so that forked processes start fast
    declare_application,
    envoy,  # noqa: F401
    general,  # noqa: F401
    king,  # noqa: F401
    petition_worker,
    sentinel,  # noqa: F401
    soldiers,
)
from kingdom.soldiers.agent_kinds import AGENT_KINDS
from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import start
from kingdom.standins.slack.application import build_slack
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.records import save_resource

_BUILDERS: Mapping[str, Callable[[Path], web.Application]] = {
    "github": build_github,
    "slack": build_slack,
    "jira": build_jira,
}
# A call without an answer is settled after the sum of these times, which is the longest wait after a crash.
_LONGEST_SEND = timedelta(seconds=5)
_LONGEST_CALL = timedelta(seconds=5)
_VISIBLE_AFTER = timedelta(seconds=1)
# The events of a killed process wait this long. A host that restarts does not wait for its lease.
_LEASE_SECONDS = 5
_PULL_REFS = 10


class MergedOutcome(msgspec.Struct, frozen=True):
    """The pull request, and the commits that other people pushed."""

    number: int
    foreign: list[str]


@asynccontextmanager
async def opened_court(stage: Stage) -> AsyncIterator[tuple[CourtProcesses, Bus]]:
    """Open the stand-ins and the store of a run."""
    application = declare_application(Realm())
    async with aiohttp.ClientSession() as session:
        processes = CourtProcesses(stage.directory, stage.url, session, stage.ports)
        async with open_bus(stage.url, application.topology, application.kinds, connections=4) as bus:
            yield processes, bus


def set_up(stage: Stage) -> None:
    """Create the repository, the General, the settings, and what the stand-ins must know."""
    asyncio.run(_set_up(stage))


async def _set_up(stage: Stage) -> None:
    async with opened_court(stage) as (processes, bus):
        make_remote(processes.source, _PULL_REFS)
        changes = write_general(processes)
        changes["soldiers"].update(directory=str(stage.host_directory), name=HOST_NAME)
        processes.write_settings({**SETTINGS, "lease_seconds": _LEASE_SECONDS, **changes})
        source = str(processes.source)
        async with bus.transaction() as transaction:
            git = Git(id=GIT_ID, name=GIT_ID, url=source, checkpoint_remote=source, repo=REPO)
            await save_resource(transaction, git, None)
        for name in STANDINS:
            await processes.until_listens(name)
        await processes.people("slack", "channels", name=CHANNEL)
        await processes.people("github", "limits", poll_interval=1)
        await prepare_github(processes)


async def play_client(stage: Stage, _: Steps) -> None:
    """Assign a ticket, and see its pull request through."""
    async with opened_court(stage) as (processes, bus), asyncio.timeout(stage.seconds):
        pull = await open_pull(processes, bus, "Write a text", stage.seconds)
        foreign = await see_through(pull)
        await until_idle(bus)
    stage.outcome.write_bytes(msgspec.json.encode(MergedOutcome(pull.number, foreign)))


async def see_through(pull: FollowedPull) -> list[str]:
    """Do all that people do until the pull request is merged. Return the commits of other people."""
    await pull.fail_check()
    commits = [await pull.push_foreign_commit()]
    await pull.request_changes()
    commits.append(await pull.move_base())
    await pull.merge()
    return commits


def _server(name: str) -> Play:
    async def play(stage: Stage, _: Steps) -> None:
        stopped = asyncio.Event()
        running = await start(_BUILDERS[name](stage.directory / f"{name}.json"), stage.ports[name])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        accept_sigterm()
        await stopped.wait()
        await running.stop()

    return play


def _role(name: CourtRole) -> Play:
    async def play(stage: Stage, step_counter: Steps) -> None:
        os.chdir(stage.directory)
        _count_all(step_counter)
        given = {"config": str(stage.directory / "kingdom.yaml"), "database_url": stage.url}
        call = _SweptCall(CommandOutput(json=True), given, step_counter=step_counter)
        await run_court_role(call, name, logging.INFO, LOOPBACK, None)

    return play


@dataclass(frozen=True)
class _SweptCall(CommandCall):
    """A call of `kingdom role` that counts the steps of its bus, but not those of its heartbeats."""

    step_counter: Steps = field(kw_only=True)

    @asynccontextmanager
    async def bus(self, application: Application, **options: Any) -> AsyncIterator[Bus]:
        async with super().bus(application, **options) as bus:
            if threading.current_thread() is threading.main_thread():
                count_steps(bus, self.step_counter)
            yield bus


def _count_all(step_counter: Steps) -> None:
    """Count the requests and the agents of this process. Its calls are settled soon, and it ends at SIGTERM."""
    count_requests(step_counter)
    kind = AGENT_KINDS["scripted"]
    swept = replace(kind, client=lambda settings: SweptAgents(kind.client(settings), step_counter))
    put_in_place(soldiers, "AGENT_KINDS", {**AGENT_KINDS, "scripted": swept})
    put_in_place(petition_worker, "GithubApi", partial(GithubApi, longest_call=_LONGEST_CALL))
    soon = partial(GithubPetitions, visible_after=_VISIBLE_AFTER, longest_send=_LONGEST_SEND)
    put_in_place(petition_worker, "GithubPetitions", soon)

    async def run(*parts: Any, on_ready: Callable[[], None]) -> bool:
        def ready() -> None:
            accept_sigterm()
            on_ready()

        return await run_until_stopped(*parts, on_ready=ready)

    put_in_place(role_command, "run_until_stopped", run)


COURT_ROLES: Mapping[str, Play] = {name: _role(name) for name in get_args(CourtRole) if name in ROLES}
COURT_SERVERS: Mapping[str, Play] = {name: _server(name) for name in STANDINS}
