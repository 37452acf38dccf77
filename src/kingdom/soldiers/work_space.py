"""The WorkSpace: the folder in which the agent of a Work runs, with links to all that it may see."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from kingdom.atomic_write import write_atomically
from kingdom.soldiers.agent_files import AgentFile
from kingdom.soldiers.removal import remove_tree
from kingdom.soldiers.trees import Tree
from kingdom.soldiers.voice.report import RESULT
from kingdom.workflow.model.work import Work

_REPORTS, _GUIDE, _TASK = "reports", "CLAUDE.md", ".kingdom-task.json"

_INSTRUCTIONS = """\
# {name}

You work in a folder of your own. Each repository is a link to a checkout on a branch of its own:

{repositories}

Reports of earlier steps lie in `reports/` and are for reading only:

{reports}

- Change files in the repositories only. Whatever you leave there is committed for you when you are done.
- Do not push, and do not change branches.
- You hold no credentials. What needs them, such as a comment on a pull request, is requested and done for you.
- When you are done, report your result with the tool `report_result`; where you are not offered it, write the same as a
  JSON object to the file that `.kingdom-task.json` names as `result_path`. `status` is `success`, `failed`,
  `needs_human` or `skipped`, and `summary` tells it in a sentence. Add `error` when you failed, `question` when you
  need a person, `reason` when there was nothing to do, `details` for what else counts.
"""


def lay_out(space: Path, run: Path, work: Work, trees: Iterable[Tree], reports: Mapping[str, str]) -> None:
    """Make the folder or bring it up to date: links, instructions, and report files that this host does not have.

    What the agent put in the place of any of these is moved aside, as `{name}.found-1`.
    """
    repositories = _named(trees)
    reading: dict[str, Path] = {}
    for path, text in reports.items():
        file = run / path
        if not file.exists():
            write_atomically(file, text)
        reading[f"{_REPORTS}/{file.name}"] = file
    space.parent.mkdir(parents=True, exist_ok=True)
    AgentFile(space.parent, space.name).make_folder()
    AgentFile(space, _REPORTS).make_folder()
    for name, target in {**repositories, **reading}.items():
        AgentFile(space, name).link_to(target)
    task = {"task_id": work.id, "result_path": str(space / RESULT)}
    texts = {_GUIDE: _instructions(work, repositories, reading), _TASK: json.dumps(task, indent=2) + "\n"}
    for name, text in texts.items():
        AgentFile(space, name).write(text)


def remove(space: Path) -> None:
    """Remove the folder of an undone Work; what its links lead to stays."""
    with suppress(OSError):
        remove_tree(space)


def _named(trees: Iterable[Tree]) -> dict[str, Path]:
    """Return each checkout under the name of its repository, with its branch where there are several of one."""
    all_trees = list(trees)
    taken = {_REPORTS, _GUIDE, _TASK, RESULT}
    found: dict[str, Path] = {}
    for tree in all_trees:
        twins = sum(other.git_id == tree.git_id for other in all_trees) > 1
        name = f"{tree.git_id}@{tree.base_branch.replace('/', '-')}" if twins else tree.git_id
        while name in taken:
            name = f"{name}-repository"
        taken.add(name)
        found[name] = tree.path
    return found


def _instructions(work: Work, repositories: Iterable[str], reports: Iterable[str]) -> str:
    return _INSTRUCTIONS.format(
        name=work.definition.name,
        repositories="\n".join(f"- `{name}/`" for name in repositories) or "(none)",
        reports="\n".join(f"- `{name}`" for name in reports) or "(none)",
    )
