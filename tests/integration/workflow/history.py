"""Run a few Workflows through the bus and record each transaction: its events, its commands, and the state."""

from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from kingdom.bus import Bus, LogEntry, Operations
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.steps.modify import Modification
from kingdom.workflow.model.steps.operations import Auto, FromCheckpoint
from kingdom.workflow.registry import (
    create_git,
    delete_git,
    show_git,
    show_mcp_server,
    unregister_mcp_server,
)
from kingdom.workflow.templates import (
    create_template,
    delete_template,
    show_template,
    template_from_workflow,
    update_template,
)
from tests.contract.backends import BackendUnderTest
from tests.integration.workflow.scene import ANNA, Scene, answer_envelope, opened
from tests.unit.workflow.model.host import agent_of, fail, succeed
from tests.unit.workflow.model.scene import APP, DOCS, LIB, task, template, work

TOOLS = McpServerRef(mcp_server_id="mcp-tools")
MORE_TOOLS = McpServerRef(mcp_server_id="mcp-more", env={"LEVEL": "2"})
TWO_WORKS = (
    work("analyse", task("look", report=True), task("decide")),
    work("build", task("build it"), task("polish it")),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One transaction about a run: what caused it, what it logged and sent, and the stored run before and after."""

    cause: str
    logged: tuple[LogEntry, ...]
    sent: tuple[commands.HostCommand, ...]
    before: Workflow
    after: Workflow
    # The runs that use git-app and mcp-tools after the transaction.
    git_users: tuple[str, ...]
    server_users: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [entry.type for entry in self.logged]

    def data(self, name: str) -> Any:
        """Return the payload of the one event of a name."""
        [entry] = [entry for entry in self.logged if entry.type == name]
        return entry.data

    def command(self, kind: type[commands.HostCommand]) -> Any:
        """Return the one command of a kind that it sent."""
        [command] = [command for command in self.sent if isinstance(command, kind)]
        return command


@dataclass(slots=True)
class History:
    """The recorded transactions of some runs by name, and the whole log."""

    stories: dict[str, list[Moment]] = field(default_factory=dict)
    registry: dict[str, tuple[LogEntry, ...]] = field(default_factory=dict)
    cascaded: dict[str, WorkflowTemplate] = field(default_factory=dict)

    def all(self, cause: str, story: str) -> list[Moment]:
        """Return the moments of a story with a cause."""
        return [moment for moment in self.stories[story] if moment.cause == cause]

    def first(self, cause: str, story: str) -> Moment:
        return self.all(cause, story)[0]

    def saying(self, name: str, story: str | None = None) -> list[Moment]:
        """Return the moments of one story, or of all, in which an event was logged."""
        stories = [self.stories[story]] if story else self.stories.values()
        return [moment for moments in stories for moment in moments if name in moment.names]

    def entries(self) -> Iterator[tuple[str, LogEntry]]:
        """Yield every log entry with its cause."""
        for moments in self.stories.values():
            yield from ((moment.cause, entry) for moment in moments for entry in moment.logged)
        for cause, logged in self.registry.items():
            yield from ((cause, entry) for entry in logged)


class RecordingScene(Scene):
    """Records a moment for each operation on a run and each answer about it."""

    def __init__(self, bus: Bus, operations: Operations, stack: AsyncExitStack) -> None:
        super().__init__(bus, operations, stack)
        self.history = History()
        self.story: list[Moment] = []
        self._taken = 0

    async def begin(self, name: str, made_from: WorkflowTemplate) -> str:
        """Begin the story of a new run."""
        self.story = self.history.stories.setdefault(name, [])
        cursor = await self.operations.log_end()
        run = await self.create_run(made_from)
        now = await self.show(run)
        await self._write("create", run, now, [e for e in await self.log(cursor) if e.aggregate_id == run])
        return run

    async def act(self, cause: str, run: str, doing: Awaitable[Workflow]) -> None:
        """Perform an operation of a person on a run."""
        before, cursor = await self.show(run), await self.operations.log_end()
        await doing
        await self.settle()
        await self._write(cause, run, before, await self.log(cursor))

    async def publish_answers(self, workflow_id: str, *host_answers: answers.HostAnswer) -> None:
        for answer in host_answers:
            before, cursor = await self.show(workflow_id), await self.operations.log_end()
            await self.bus.publish(answer_envelope(answer, workflow_id))
            await self.settle()
            await self._write(type(answer).__name__, workflow_id, before, await self.log(cursor))

    async def note(self, cause: str, doing: Awaitable[Any]) -> None:
        """Perform an operation of a person on a template, a repository or an MCP server."""
        cursor = await self.operations.log_end()
        await doing
        await self.settle()
        self.history.registry[cause] = tuple(await self.log(cursor))

    async def start(self, run: str) -> None:
        await self.act("start", run, lifecycle.start(self.bus, run, actor=ANNA))

    async def modify(self, run: str, **changes: Any) -> None:
        await self.act("modify", run, lifecycle.modify(self.bus, run, Modification(**changes), actor=ANNA))

    async def pause(self, run: str) -> None:
        """Pause a run at its query, which gets no answer."""
        self.pick(run, commands.SendQuery)
        await self.act("pause", run, lifecycle.pause(self.bus, run, actor=ANNA))
        await self.succeed(run, commands.StopAgent)

    async def resume(self, run: str, how: Auto | FromCheckpoint) -> None:
        await self.act("resume", run, lifecycle.resume(self.bus, run, how, actor=ANNA))

    async def _write(self, cause: str, run: str, before: Workflow, logged: list[LogEntry]) -> None:
        taken = [command for host in self.hosts.values() for command in host.taken]
        sent, self._taken = tuple(taken[self._taken :]), len(taken)
        _, git_users = await show_git(self.bus, APP.git_id)
        _, server_users = await show_mcp_server(self.bus, TOOLS.mcp_server_id)
        now = await self.show(run)
        self.story.append(Moment(cause, tuple(logged), sent, before, now, git_users.workflows, server_users.workflows))


def two_works() -> WorkflowTemplate:
    return template(*TWO_WORKS, git_refs=(APP, LIB), mcp_server_refs=(TOOLS,))


async def record(backend: BackendUnderTest) -> History:
    """Return the history of all stories on a backend."""
    async with opened(backend, scene_class=RecordingScene) as scene:
        assert isinstance(scene, RecordingScene)
        await scene.register_repositories(APP.git_id, LIB.git_id, DOCS.git_id)
        for server in (TOOLS, MORE_TOOLS):
            await scene.register_server(server.mcp_server_id)
        await scene.start_host("host-a")
        await _record_ending_runs(scene)
        await _record_failures(scene)
        await _record_resumes(scene)
        await _record_prepared_run(scene)
        await _record_registry(scene)
        return scene.history


async def _record_ending_runs(scene: RecordingScene) -> None:
    """Record runs that release a repository of their current Work and then end."""
    run = await scene.begin("completed", two_works())
    await scene.start(run)
    await scene.until(run, commands.SendQuery)
    await scene.modify(run, git_refs=(APP,), mcp_server_refs=(TOOLS, MORE_TOOLS))
    await scene.finish(run)
    await scene.act("release", run, lifecycle.release(scene.bus, run, actor=ANNA))
    await scene.finish(run)

    run = await scene.begin("cancelled", two_works())
    await scene.start(run)
    await scene.until(run, commands.SendQuery)
    await scene.modify(run, git_refs=(APP,))
    scene.pick(run, commands.SendQuery)
    await scene.act("cancel", run, lifecycle.cancel(scene.bus, run, actor=ANNA))
    await scene.finish(run)

    run = await scene.begin("failed", two_works())
    await scene.start(run)
    sent = await scene.until(run, commands.SendQuery)
    await scene.modify(run, git_refs=(APP,))
    scene.pick(run, commands.SendQuery)
    agent = agent_of(sent.work_id)
    await scene.publish_answers(run, fail(agent, "the agent crashed"))
    await scene.finish(run)


async def _record_failures(scene: RecordingScene) -> None:
    for story, kind in (("query failed", commands.SendQuery), ("report failed", commands.GenerateReport)):
        run = await scene.begin(story, two_works())
        await scene.start(run)
        await scene.until(run, kind)
        await scene.fail(run, kind)
        await scene.succeed(run, commands.StopAgent)
    run = await scene.begin("tree failed", two_works())
    await scene.start(run)
    command = scene.pick(run, commands.PrepareResources)
    await scene.publish_answers(run, succeed(command)[0], fail(command))


async def _record_resumes(scene: RecordingScene) -> None:
    later = work("build", task("draft", report=True), task("build it"))
    run = await scene.begin("resumed", template(work("analyse", task("look")), later, work("check", task())))
    await scene.start(run)
    await scene.until(run, commands.SendQuery)
    await scene.pause(run)
    await scene.resume(run, Auto())
    await scene.until(run, commands.GenerateReport, 1)
    await scene.until(run, commands.SendQuery, 1)
    await scene.pause(run)
    await scene.resume(run, Auto())
    await scene.until(run, commands.SendQuery, 2)
    await scene.pause(run)
    await scene.resume(run, FromCheckpoint(f"{run}-w1-c1"))
    await scene.finish(run)


async def _record_prepared_run(scene: RecordingScene) -> None:
    run = await scene.begin("prepared", two_works())
    await scene.act("prepare", run, lifecycle.prepare(scene.bus, run, actor=ANNA))
    await scene.finish(run)
    await scene.modify(run, git_refs=(APP, DOCS))
    await scene.finish(run)
    await scene.start(run)
    scene.pick(run, commands.StartAgent)
    await scene.act("cancel", run, lifecycle.cancel(scene.bus, run, actor=ANNA))
    await scene.finish(run)


async def _record_registry(scene: RecordingScene) -> None:
    bus = scene.bus
    git = Git(id="git-old", name="old", url="https://example.org/old.git")
    await scene.note("create_git", create_git(bus, git, actor=ANNA))
    await scene.register_server("mcp-old")
    old = GitRef(git_id="git-old", base_branch="main")
    server = McpServerRef(mcp_server_id="mcp-old")
    works = (work("only", task(), git_refs=(old,), mcp_server_refs=(server,)),)
    made = template(*works, id="tpl-old", git_refs=(APP, old), mcp_server_refs=(TOOLS, server))
    await scene.note("create_template", create_template(bus, made, actor=ANNA))
    await scene.note("update_template", update_template(bus, "tpl-old", made, actor=ANNA))
    run = await scene.begin("copied", made)
    await scene.note("template_from_workflow", template_from_workflow(bus, run, "Like before", actor=ANNA))
    await scene.note("delete_git", delete_git(bus, "git-old", actor=ANNA))
    scene.history.cascaded["delete_git"] = await show_template(bus, "tpl-old")
    await scene.note("unregister_mcp_server", unregister_mcp_server(bus, "mcp-old", actor=ANNA))
    scene.history.cascaded["unregister_mcp_server"] = await show_template(bus, "tpl-old")
    await scene.note("delete_template", delete_template(bus, "tpl-old", actor=ANNA))
