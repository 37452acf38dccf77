"""The WorkSpace: the folder in which the agent of a Work runs, with links to everything it needs."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.agent_tools.result_file import RESULT_FILE
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.files.removal import remove_tree
from kingdom.workflow.model.run.work import Work

_REPORTS, _GUIDE, _TASK = "reports", "CLAUDE.md", ".kingdom-task.json"
_PLACEHOLDER = re.compile(r"\{\{ ?(name|repositories|reports) ?\}\}")

# A text of the realm that replaces this one can contain the same placeholders.
_INSTRUCTIONS = """\
# {{name}}

You work in your own folder. Each repository is a link to a checkout on its own branch:

{{repositories}}

Reports of earlier steps are in `reports/` and are read-only:

{{reports}}

- Change files in the repositories only. Your changes there are committed for you when you are done.
- Do not push, and do not change branches.
- You have no credentials. Request what needs them, such as a comment on a pull request, and it is done for you.
- When you are done, report your result with the tool `report_result`; if you do not have it, write the same as a JSON
  object to the file that `.kingdom-task.json` names as `result_path`. `status` is `success`, `failed`, `needs_human` or
  `skipped`, and `summary` describes it in a sentence. Add `error` when you failed, `question` when you need a person,
  `reason` when there was nothing to do, `details` for anything else that matters.
"""


def lay_out_work_space(
    space: Path,
    run: Path,
    work: Work,
    trees: Iterable[CheckoutSpec],
    reports: Mapping[str, str],
    *,
    assignment_id: str = "",
    guide: Path | None = None,
) -> None:
    """Create or update the folder with its links and instructions, and write report files that this host lacks.

    `run` is the folder of the run, and `reports` are texts by their path in it. A run that a person started has no
    `assignment_id`. If the file `guide` exists, its text replaces the built-in instructions. If the agent put something
    else in place of a link or file, that is renamed to `{name}.found-1`.
    """
    template = _read_guide(guide)
    repositories = _link_names(trees)
    report_links: dict[str, Path] = {}
    for path, text in reports.items():
        file = run / path
        if not file.exists():
            write_atomically(file, text)
        report_links[f"{_REPORTS}/{file.name}"] = file
    space.parent.mkdir(parents=True, exist_ok=True)
    AgentFile(space.parent, space.name).make_folder()
    AgentFile(space, _REPORTS).make_folder()
    for name, target in {**repositories, **report_links}.items():
        AgentFile(space, name).link_to(target)
    task = {"task_id": assignment_id or work.id, "result_path": str(space / RESULT_FILE)}
    texts = {
        _GUIDE: _instructions(template, work, repositories, report_links),
        _TASK: json.dumps(task, indent=2) + "\n",
    }
    for name, text in texts.items():
        AgentFile(space, name).write(text)


def remove_work_space(space: Path) -> None:
    """Remove a WorkSpace if possible, without following its links."""
    with suppress(OSError):
        remove_tree(space)


def _link_names(trees: Iterable[CheckoutSpec]) -> dict[str, Path]:
    """Return the checkouts by link name: the repository id, with the branch if several checkouts share the id."""
    all_trees = list(trees)
    taken = {_REPORTS, _GUIDE, _TASK, RESULT_FILE}
    found: dict[str, Path] = {}
    for tree in all_trees:
        is_shared_id = sum(other.git_id == tree.git_id for other in all_trees) > 1
        name = f"{tree.git_id}@{tree.base_branch.replace('/', '-')}" if is_shared_id else tree.git_id
        while name in taken:
            name = f"{name}-repository"
        taken.add(name)
        found[name] = tree.path
    return found


def _read_guide(guide: Path | None) -> str:
    try:
        return guide.read_text(encoding="utf-8") if guide else _INSTRUCTIONS
    except FileNotFoundError:
        return _INSTRUCTIONS
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramFailed(
            f"the instructions in {guide} cannot be read ({error}): correct the file, or remove it to use the built-in"
            " instructions"
        ) from error


def _instructions(template: str, work: Work, repositories: Iterable[str], reports: Iterable[str]) -> str:
    values = {
        "name": work.definition.name,
        "repositories": "\n".join(f"- `{name}/`" for name in repositories) or "(none)",
        "reports": "\n".join(f"- `{name}`" for name in reports) or "(none)",
    }
    # One pass, so that placeholders in the name of a Work are not replaced.
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
