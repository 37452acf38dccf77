"""The reference run: 3 Works of 2 Tasks with reports, over 2 repositories, in real git."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kingdom.bus.port import Bus
from kingdom.workflow import lifecycle
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.template import RunPolicy, TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import publish_events, save_resource

ACTOR = "bench"
REPOSITORIES = ("app", "lib")
# The highest cost of one response of an agent.
RESPONSE_USD = 0.01
_IDENTITY = ("-c", "user.name=Bench", "-c", "user.email=bench@localhost")


_Step = Mapping[str, object]


def script(*steps: _Step) -> str:
    """Return a prompt with a script, for the scripted agent or for an agent whose model follows scripts."""
    lines = "\n".join(json.dumps(step) for step in steps)
    return f"Follow the script.\n```script\n{lines}\n```\n"


def make_repository(directory: Path) -> Path:
    """Create a repository with one commit on main."""
    directory.mkdir(parents=True)
    (directory / "README.md").write_text(f"# {directory.name}\n")
    _git(directory, "init", "--quiet", "--initial-branch", "main")
    _git(directory, "add", "--all")
    _git(directory, *_IDENTITY, "commit", "--quiet", "--message", "Begin")
    return directory


def template(
    repositories: tuple[str, ...] = REPOSITORIES,
    works: int = 3,
    tasks: int = 2,
    retries: int = 0,
    *,
    offers_tools: bool = False,
) -> WorkflowTemplate:
    """Return the template of the reference run: every Task writes to every repository and leaves a report.

    With `offers_tools` the agent reports the result of each Work with a tool, and each turn has two costs.
    """
    return WorkflowTemplate(
        id="reference",
        name="Reference",
        policy=RunPolicy(retries=retries),
        git_refs=tuple(GitRef(git_id=name, base_branch="main") for name in repositories),
        works=tuple(
            WorkDefinition(
                name=f"work {work}",
                tasks=tuple(
                    _task_with_tools(work, task, repositories, is_last=task == tasks)
                    if offers_tools
                    else _task(work, task, repositories)
                    for task in range(1, tasks + 1)
                ),
                verify=tuple(f"test -f {name}/work{work}/task{tasks}.txt" for name in repositories),
            )
            for work in range(1, works + 1)
        ),
    )


async def store_resources(bus: Bus, sources: Path, made_from: WorkflowTemplate, *, shared: Path | None = None) -> None:
    """Store the repositories and the template."""
    async with bus.transaction() as transaction:
        for name in {ref.git_id for ref in made_from.git_refs}:
            remote = str(shared / f"{name}.git") if shared else ""
            git = Git(id=name, name=name, url=str(sources / name), checkpoint_remote=remote)
            await save_resource(transaction, git, None)
            await publish_events(transaction, [git.created_event()], aggregate="Git", key=name, actor=ACTOR)
        await save_resource(transaction, made_from, None)
        await publish_events(
            transaction, [made_from.created_event()], aggregate="WorkflowTemplate", key=made_from.id, actor=ACTOR
        )


async def start_run(bus: Bus, template_id: str = "reference") -> Workflow:
    """Create and start a run."""
    workflow = await lifecycle.create(bus, template_id, actor=ACTOR)
    return await lifecycle.start(bus, workflow.id, actor=ACTOR)


def _task(work: int, task: int, repositories: tuple[str, ...]) -> TaskDefinition:
    report = {"report": _report(work, task, repositories)}
    return TaskDefinition(
        query=script(*_steps(work, task, repositories), report, {"cost": RESPONSE_USD}, {"answer": "written"}),
        report_outline=(ReportSection(title="Report", description="What was written."),),
    )


def _task_with_tools(work: int, task: int, repositories: tuple[str, ...], *, is_last: bool) -> TaskDefinition:
    say, *others = _steps(work, task, repositories)
    cost = {"cost": RESPONSE_USD}
    result = [{"result": {"status": "success", "summary": f"Work {work} is done."}}] if is_last else []
    return TaskDefinition(
        query=script(say, cost, *others, *result, cost, {"answer": "written"}),
        # The report is a script too, so that a second attempt writes the same report.
        report_outline=(
            ReportSection(title="Report", description=script({"answer": _report(work, task, repositories)})),
        ),
    )


def _steps(work: int, task: int, repositories: tuple[str, ...]) -> list[_Step]:
    files = [
        {"write": f"{name}/work{work}/task{task}.txt", "text": f"{name} by task {task} of work {work}\n"}
        for name in repositories
    ]
    return [{"say": f"task {task} of work {work}"}, *files, {"run": "git -C app status --short"}]


def _report(work: int, task: int, repositories: tuple[str, ...]) -> str:
    return f"# Report\n\nTask {task} of work {work} wrote {len(repositories)} files.\n"


def _git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=directory, check=True, capture_output=True)
