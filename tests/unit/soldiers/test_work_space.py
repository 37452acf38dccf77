"""The WorkSpace of an agent: its contents, and its preparation despite files that an agent left there."""

import json
import shutil
from pathlib import Path

import pytest

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.workplace import work_space
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.run.work import Work

REPORT = "reports/wf-1-w1-t1-report-a1.md"


def a_tree(run: Path, git_id: str = "app", base_branch: str = "main") -> CheckoutSpec:
    path = run / "trees" / f"{git_id}-{base_branch.replace('/', '-')}"
    path.mkdir(parents=True, exist_ok=True)
    return CheckoutSpec(
        id=path.name,
        git_id=git_id,
        url="",
        checkpoint_remote="",
        base_branch=base_branch,
        branch="kingdom/wf-1/run",
        path=path,
    )


def laid_out(run: Path, *trees: CheckoutSpec, reports: dict[str, str] | None = None) -> Path:
    space = run / "spaces" / "space1"
    work = Work.of("wf-1-w2", WorkDefinition(name="Mend it", tasks=(TaskDefinition(query="mend"),)))
    work_space.lay_out_work_space(space, run, work, trees, reports or {})
    return space


def test_an_agent_finds_its_repositories_the_reports_and_its_instructions(tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    (tree.path / "code.py").write_text("pass\n")
    space = laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    assert (space / "app" / "code.py").read_text() == "pass\n"
    assert (space / REPORT).read_text() == "# Found\n"
    assert (tmp_path / REPORT).read_text() == "# Found\n"
    instructions = (space / "CLAUDE.md").read_text()
    assert instructions.startswith("# Mend it\n")
    assert "- `app/`" in instructions
    assert f"- `{REPORT}`" in instructions
    task = json.loads((space / ".kingdom-task.json").read_text())
    # A run that a person started has no assignment.
    assert task == {"task_id": "wf-1-w2", "result_path": str(space / "result.json")}


def test_two_branches_of_one_repository_are_linked_under_different_names(tmp_path: Path) -> None:
    trees = (a_tree(tmp_path), a_tree(tmp_path, base_branch="release/2"), a_tree(tmp_path, "lib"))
    space = laid_out(tmp_path, *trees)
    links = {path.name: path.readlink() for path in space.iterdir() if path.is_symlink()}
    assert links == {"app@main": trees[0].path, "app@release-2": trees[1].path, "lib": trees[2].path}


def test_a_work_without_repositories_and_reports_says_so(tmp_path: Path) -> None:
    instructions = (laid_out(tmp_path) / "CLAUDE.md").read_text()
    assert instructions.count("(none)") == 2


def test_laying_out_a_folder_again_keeps_other_files_and_restores_links_and_instructions(tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    space = laid_out(tmp_path, tree)
    (space / "notes.txt").write_text("mine\n")
    (space / "app").unlink()
    (space / "app").mkdir()
    (space / "CLAUDE.md").write_text("do as you like\n")
    assert laid_out(tmp_path, tree) == space
    assert (space / "notes.txt").read_text() == "mine\n"
    assert (space / "app").readlink() == tree.path
    assert (space / "CLAUDE.md").read_text().startswith("# Mend it\n")


@pytest.mark.parametrize("git_id", ["reports", "CLAUDE.md", ".kingdom-task.json", "result.json"])
def test_a_repository_with_a_reserved_name_is_linked_under_another_name(tmp_path: Path, git_id: str) -> None:
    tree, other = a_tree(tmp_path, git_id), a_tree(tmp_path, f"{git_id}-repository")
    space = laid_out(tmp_path, tree, other, reports={REPORT: "# Found\n"})
    links = {path.name: path.readlink() for path in space.iterdir() if path.is_symlink()}
    assert links == {f"{git_id}-repository": tree.path, f"{git_id}-repository-repository": other.path}
    assert (space / REPORT).read_text() == "# Found\n"
    assert f"- `{git_id}-repository/`" in (space / "CLAUDE.md").read_text()
    assert list(tree.path.iterdir()) == []


def test_a_file_that_replaced_a_link_is_renamed_and_kept(tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    space = laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    for number in (1, 2):
        laid_out(tmp_path, tree)
        (space / "app").unlink()
        (space / "app").mkdir()
        (space / "app" / "work.txt").write_text(f"{number}\n")
    (space / REPORT).unlink()
    (space / REPORT).write_text("# Better\n")
    (space / "CLAUDE.md").unlink()
    (space / "CLAUDE.md").mkdir()
    laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    assert (space / "app").readlink() == tree.path
    assert [(space / f"app.found-{number}" / "work.txt").read_text() for number in (1, 2)] == ["1\n", "2\n"]
    assert (space / REPORT).read_text() == "# Found\n"
    assert (space / f"{REPORT}.found-1").read_text() == "# Better\n"
    assert (space / "CLAUDE.md").read_text().startswith("# Mend it\n")


def test_links_that_an_agent_made_are_not_followed(tmp_path: Path) -> None:
    tree, elsewhere = a_tree(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("precious\n")
    space = laid_out(tmp_path, tree)
    for name in ("CLAUDE.md", ".CLAUDE.md.draft", ".kingdom-task.json"):
        (space / name).unlink(missing_ok=True)
        (space / name).symlink_to(elsewhere / "precious")
    (space / "reports").rmdir()
    (space / "reports").symlink_to(elsewhere)
    laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    shutil.rmtree(space)
    space.symlink_to(elsewhere)
    laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"precious": "precious\n"}
    assert not space.is_symlink()
    assert (space / REPORT).read_text() == "# Found\n"


def test_an_existing_report_is_not_written_again(tmp_path: Path) -> None:
    write_atomically(tmp_path / REPORT, "# As it was\n")
    space = laid_out(tmp_path, reports={REPORT: "# Another\n"})
    assert (space / REPORT).read_text() == "# As it was\n"


def test_removing_a_folder_keeps_the_targets_of_its_links(tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    (tree.path / "code.py").write_text("pass\n")
    space = laid_out(tmp_path, tree, reports={REPORT: "# Found\n"})
    work_space.remove_work_space(space)
    work_space.remove_work_space(space)
    assert not space.exists()
    assert (tree.path / "code.py").exists()
    assert (tmp_path / REPORT).exists()


def test_an_atomic_write_replaces_a_file_and_leaves_no_draft(tmp_path: Path) -> None:
    write_atomically(tmp_path / "reports" / "one.md", "first\n")
    write_atomically(tmp_path / "reports" / "one.md", "second\n")
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["one.md"]
    assert (tmp_path / "reports" / "one.md").read_text() == "second\n"


def test_a_file_is_not_written_into_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "reports").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProgramFailed, match=r"reports/one\.md could not be written"):
        write_atomically(tmp_path / "reports" / "one.md", "first\n")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "one.md").mkdir()
    with pytest.raises(ProgramFailed):
        write_atomically(tmp_path / "one.md", "first\n")
    assert [path.name for path in tmp_path.iterdir()] == ["one.md"]
