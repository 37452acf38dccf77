import os
import re
import shutil
import time
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from kingdom.court.memory import apply_memory_updates, list_memory
from kingdom.court.package_files import SHIPPED, find_shipped_package, install_package, load_package, load_packages
from kingdom.court.petitions.bodies import AssignmentSubject, read_body
from kingdom.court.prompt import PROMPT_BYTES_MAX, PromptContext, render
from kingdom.errors import IllegalTransition, Misconfigured
from kingdom.soldiers.agents.scripted.script import PetitionStep, parse_script
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]

WORKFLOW = "name: Look\nworks:\n  - name: look\n    tasks: [prompts/look.md]\n"
MORNING = {"name": "morning", "cron": "0 9 * * 1-5", "task_type": "briefing"}


def make(
    place: Path, called: str = "gen-x", /, *, workflow: str = WORKFLOW, prompt: str = "Look.", **fields: Any
) -> Path:
    """Write a package."""
    folder = place / called
    (folder / "prompts").mkdir(parents=True)
    (folder / "general.yaml").write_text(yaml.safe_dump({"name": called, "description": "Looks.", **fields}))
    (folder / "workflow.yaml").write_text(workflow)
    (folder / "prompts" / "look.md").write_text(prompt)
    return folder


def reason(place: Path) -> str:
    loaded = load_packages(place)
    assert loaded.packages == ()
    (broken,) = loaded.broken
    return broken.reason


def test_a_package_is_read_with_its_prompts(tmp_path: Path) -> None:
    folder = make(tmp_path, prompt="Look at {{ payload.title }}.", subscribes=[{"type": "github.*"}])
    (package,) = load_packages(tmp_path).packages
    assert (package.name, package.template.id, package.directory) == ("gen-x", "gen-x", str(folder))
    assert package.template.works[0].tasks[0].query == "Look at {{ payload.title }}."
    assert package.general.subscribes[0].type == "github.*"


def test_a_query_that_only_mentions_a_prompt_file_is_not_replaced_by_the_file(tmp_path: Path) -> None:
    make(tmp_path, workflow=WORKFLOW.replace("[prompts/look.md]", "[Read prompts/look.md first.]"))
    (package,) = load_packages(tmp_path).packages
    assert package.template.works[0].tasks[0].query == "Read prompts/look.md first."


def test_packages_come_in_the_order_in_which_events_are_offered(tmp_path: Path) -> None:
    make(tmp_path, "gen-a", order=200)
    make(tmp_path, "gen-c")
    make(tmp_path, "gen-b")
    (tmp_path / "notes").mkdir()
    (tmp_path / "gen-readme").write_text("no folder")
    assert [package.name for package in load_packages(tmp_path).packages] == ["gen-b", "gen-c", "gen-a"]
    assert load_packages(tmp_path / "nowhere").packages == ()


def test_a_broken_package_disables_only_itself(tmp_path: Path) -> None:
    make(tmp_path, "gen-good")
    make(tmp_path, "gen-bad", colour="red")
    (tmp_path / "gen-empty").mkdir()
    (tmp_path / "gen-gone").symlink_to(tmp_path / "nowhere")
    (make(tmp_path, "gen-deep") / "general.yaml").write_text("[" * 1500)
    (make(tmp_path, "gen-day") / "general.yaml").write_text("name: gen-day\ndescription: 2026-13-45\n")
    loaded = load_packages(tmp_path)
    assert [package.name for package in loaded.packages] == ["gen-good"]
    assert [broken.name for broken in loaded.broken] == ["gen-bad", "gen-day", "gen-deep", "gen-empty", "gen-gone"]
    assert "gen-day/general.yaml:2:14: this is not valid YAML: month must be in 1..12" in loaded.broken[1].reason
    assert "gen-empty/general.yaml is missing" in loaded.broken[3].reason


@pytest.mark.parametrize("received", ["github.issue.mentioned", "github.*", "git*", "*", "[g]ithub.pr.mentioned"])
def test_if_strangers_are_accepted_a_general_for_github_must_name_repositories(tmp_path: Path, received: str) -> None:
    folder = make(tmp_path)
    file = folder / "general.yaml"
    text = f"name: gen-x\ndescription: Looks.\nsubscribes:\n  - type: demo.hello\n  - type: '{received}'\n"
    file.write_text(text)
    assert load_package(folder).name == "gen-x"
    (broken,) = load_packages(tmp_path, accepts_strangers=True).broken
    assert broken.reason.startswith(f"{file}:5: {received} would accept events of every repository on GitHub")
    assert 'add a line `repos: ["OWNER/*"]`' in broken.reason
    file.write_text(f'{text}    repos: ["acme/*"]\n')
    assert load_packages(tmp_path, accepts_strangers=True).broken == ()


def test_if_strangers_are_accepted_events_from_outside_of_github_need_no_repository(tmp_path: Path) -> None:
    make(tmp_path, subscribes=[{"type": "jira.*"}, {"type": "demo.*"}, {"type": "gith"}], schedules=[MORNING])
    assert load_packages(tmp_path, accepts_strangers=True).broken == ()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"colour": "red"}, "general.yaml:1: colour: unknown field; known fields: name, description, order"),
        ({"timeout_seconds": 5}, "timeout_seconds: must be a whole number of at least 30"),
        ({"policy": {"retry": 1}}, "policy.retry: unknown field; known fields: retries, retry_after_seconds"),
        (
            {"policy": {"petitions": [{"kind": "github.review", "often": 2}]}},
            "policy.petitions[0].often: unknown field; known fields: kind, targets, at_most",
        ),
        ({"subscribes": [{"type": "x", "where": {"reason": "y"}}]}, "[0]: 'reason' is not a field of an event"),
        ({"subscribes": [{"type": "x", "supersedes": "{number}"}]}, "[0]: 'number' is not a field of an event"),
        ({"schedules": [{**MORNING, "cron": "0 25 * * *"}]}, "schedules[0]: cron '0 25 * * *' is not valid"),
        ({"schedules": [{**MORNING, "cron": "* * * * * *"}]}, "must have five fields, such as '0 9 * * 1-5'"),
        ({"schedules": [{**MORNING, "time_zone": "Mars/Base"}]}, "schedules[0]: time_zone 'Mars/Base' is unknown"),
        ({"schedules": [{**MORNING, "time_zone": "../passwd"}]}, "is unknown: write one such as Europe/Berlin"),
        (
            {"schedules": [{**MORNING, "catch_up": "twice"}]},
            "schedules[0].catch_up: 'twice' is not one of the allowed values",
        ),
        ({"schedules": [MORNING, MORNING]}, "several schedules are named morning"),
        ({"memory": ["../other/notes.md"]}, "../other/notes.md points outside the package"),
        ({"name": "gen-y"}, "name is 'gen-y': give its folder the same name, or change the name"),
        ({"name": "Looker"}, "name: must be text that matches the pattern"),
    ],
)
def test_an_error_in_general_yaml_is_reported_with_its_place(
    tmp_path: Path, fields: dict[str, Any], complaint: str
) -> None:
    make(tmp_path, **fields)
    assert complaint in reason(tmp_path)
    assert "general.yaml" in reason(tmp_path)


def test_an_error_names_its_line(tmp_path: Path) -> None:
    (make(tmp_path) / "general.yaml").write_text(
        "name: gen-x\ndescription: Looks.\nschedules:\n  - {name: a, cron: 0 9 * * *, task_type: t}\n"
        "  - name: b\n    cron: 61 * * * *\n    task_type: t\n"
    )
    assert "general.yaml:5: schedules[1]: cron '61 * * * *' is not valid" in reason(tmp_path)


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("prompts/gone.md", "prompts/gone.md is missing"),
        ("prompts/look.txt", "works[0].tasks[0].query: a prompt file must be a .md file, such as prompts/review.md"),
        ("prompts/../../outside.md", "prompts/../../outside.md points outside the package"),
        ("prompts/link.md", "prompts/link.md points outside the package"),
        ("prompts/loop.md", "prompts/loop.md points outside the package"),
        ("prompts/pipe.md", "prompts/pipe.md is missing"),
        ("prompts/empty.md", "prompts/empty.md:1: the prompt is empty"),
        ("prompts/latin.md", "prompts/latin.md is not UTF-8"),
        ("prompts/long.md", f"has {PROMPT_BYTES_MAX + 1} bytes, at most {PROMPT_BYTES_MAX} are allowed"),
        ("prompts/wrong.md", "prompts/wrong.md:2: {{ secrets.key }} is unknown; available: payload.…"),
        ("'{{ secrets.key }}'", "workflow.yaml: works[0].tasks[0].query, line 1: {{ secrets.key }} is unknown"),
    ],
)
def test_a_prompt_that_cannot_be_used_breaks_its_package(tmp_path: Path, query: str, complaint: str) -> None:
    place = tmp_path / "generals"
    prompts = make(place, workflow=WORKFLOW.replace("prompts/look.md", query)) / "prompts"
    outside = tmp_path / "outside.md"
    outside.write_text("secret")
    (place / "outside.md").write_text("secret")
    (prompts / "link.md").symlink_to(outside)
    (prompts / "loop.md").symlink_to("loop.md")
    (prompts / "empty.md").write_text(" \n")
    (prompts / "latin.md").write_bytes("Grüße".encode("latin-1"))
    (prompts / "long.md").write_text("x" * (PROMPT_BYTES_MAX + 1))
    (prompts / "wrong.md").write_text("Use\n{{ secrets.key }}\n")
    os.mkfifo(prompts / "pipe.md")
    assert complaint in reason(place)


def test_a_schedule_whose_workflow_needs_a_repository_must_have_one(tmp_path: Path) -> None:
    folder = make(tmp_path, workflow=f"gitRefs: [event-repo]\n{WORKFLOW}", schedules=[MORNING])
    assert "schedule morning has no repository to work in" in reason(tmp_path)
    (folder / "general.yaml").write_text((folder / "general.yaml").read_text() + "default_repo: acme/shop\n")
    assert [package.name for package in load_packages(tmp_path).packages] == ["gen-x"]


def test_the_second_of_two_packages_with_one_schedule_is_broken(tmp_path: Path) -> None:
    make(tmp_path, "gen-a", order=200, schedules=[MORNING])
    make(tmp_path, "gen-b", schedules=[MORNING])
    loaded = load_packages(tmp_path)
    assert [package.name for package in loaded.packages] == ["gen-b"]
    assert "schedule morning already belongs to gen-b: give it another name" in loaded.broken[0].reason


def test_the_shipped_generals_are_complete() -> None:
    loaded = load_packages(SHIPPED)
    assert loaded.broken == ()
    assert {package.name for package in loaded.packages} == {
        *("gen-briefing", "gen-fix", "gen-hello", "gen-jira", "gen-pr", "gen-test"),
    }
    assert find_shipped_package("gen-pr") == SHIPPED / "gen-pr"
    assert find_shipped_package("../generals/gen-pr") is None


def test_the_shipped_generals_request_only_allowed_petitions() -> None:
    values = {"number": 7, "key": "SHOP-1", "summary": "Say hi", "channel": "engineering"}
    values |= {"title": "Say hi", "branch": "feature"}
    origin = AssignmentSubject(repo="acme/shop", number=7, ticket="SHOP-1", channel="engineering")
    asked: list[str] = []
    for package in load_packages(SHIPPED).packages:
        allowed = {rule.kind: rule for rule in package.general.policy.petitions}
        context = PromptContext(payload=values, repo="acme/shop", event={}, task={}, git="acme-shop")
        for task in (task for work in package.template.works for task in work.tasks):
            for step in parse_script(render(task.query, context)) or ():
                if isinstance(step, PetitionStep):
                    body = read_body(step.petition, step.body, origin)
                    assert body.is_about(origin)
                    assert any(fnmatchcase(body.target, glob) for glob in allowed[step.petition].targets)
                    asked.append(step.petition)
    pull_requests = ["github.pull_request"] * 2
    assert sorted(asked) == ["github.comment", *pull_requests, "github.review", "jira.comment", "slack.message"]


def test_the_example_in_the_documentation_is_a_general(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "generals.md").read_text()
    examples = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if text.startswith("name: gen-pr")]
    (make(tmp_path, "gen-pr") / "general.yaml").write_text(*examples)
    assert load_packages(tmp_path).broken == ()


def test_a_package_is_installed_whole_and_never_overwritten_by_accident(tmp_path: Path) -> None:
    source, place = make(tmp_path / "drafts"), tmp_path / "generals"
    (source / ".git").mkdir()
    installed = install_package(source, place, replace=False)
    assert installed.directory == str(place / "gen-x")
    assert sorted(path.name for path in place.rglob("*")) == [
        "gen-x",
        "general.yaml",
        "look.md",
        "prompts",
        "workflow.yaml",
    ]
    with pytest.raises(IllegalTransition, match="would be overwritten; allowed now: --replace"):
        install_package(source, place, replace=False)
    with pytest.raises(Misconfigured, match="is where gen-x is installed"):
        install_package(place / "gen-x", place, replace=True)


def test_a_replaced_package_keeps_what_it_has_learned(tmp_path: Path) -> None:
    source, place = make(tmp_path / "drafts"), tmp_path / "generals"
    install_package(source, place, replace=False)
    (place / "gen-x" / "memory").mkdir()
    (place / "gen-x" / "memory" / "patterns.md").write_text("- learned\n")
    (place / "gen-x" / "prompts" / "old.md").write_text("old")
    (source / "prompts" / "look.md").write_text("Look again.")
    replaced = install_package(source, place, replace=True)
    assert replaced.template.works[0].tasks[0].query == "Look again."
    assert (place / "gen-x" / "memory" / "patterns.md").read_text() == "- learned\n"
    assert not (place / "gen-x" / "prompts" / "old.md").exists()
    assert [path.name for path in place.iterdir()] == ["gen-x"]


def test_what_a_run_learns_while_a_package_is_replaced_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, place = make(tmp_path / "drafts"), tmp_path / "generals"
    folder = Path(install_package(source, place, replace=False).directory)
    apply_memory_updates(folder, ["Known."])
    rename, learning = Path.rename, Thread(target=apply_memory_updates, args=(folder, ["New."]), daemon=True)

    def learn_and_rename(path: Path, to: Path) -> Path:
        if path == folder:
            inode = place.stat().st_ino
            learning.start()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while learning.is_alive() and not re.search(rf"-> .*:{inode} ", Path("/proc/locks").read_text()):
                assert time.monotonic() < deadline, "the run neither learned nor waited"
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", learn_and_rename)
    install_package(source, place, replace=True)
    learning.join(PATIENCE_SECONDS)
    assert [line.text for line in list_memory(folder)] == ["Known.", "New."]


def test_a_package_set_aside_by_a_killed_process_is_restored(tmp_path: Path) -> None:
    source, place = make(tmp_path / "drafts"), tmp_path / "generals"
    install_package(source, place, replace=False)
    (place / "gen-x").rename(place / ".gen-x.replaced")
    with pytest.raises(IllegalTransition):
        install_package(source, place, replace=False)
    assert [path.name for path in place.iterdir()] == ["gen-x"]


def test_a_general_that_would_break_itself_or_another_is_not_installed(tmp_path: Path) -> None:
    drafts, place = tmp_path / "drafts", tmp_path / "generals"
    make(place, "gen-a", schedules=[MORNING])
    with pytest.raises(Misconfigured, match="schedule morning already belongs to gen-a"):
        install_package(make(drafts, "gen-b", schedules=[MORNING]), place, replace=False)
    linked = make(drafts, "gen-c")
    shutil.move(linked / "prompts" / "look.md", linked / "look.md")
    (linked / "prompts" / "look.md").symlink_to(linked / "look.md")
    load_package(linked)
    with pytest.raises(Misconfigured, match="points outside the package"):
        install_package(linked, place, replace=False)
    (place / "gen-d").symlink_to(make(drafts, "gen-d"))
    with pytest.raises(Misconfigured, match="is a link"):
        install_package(drafts / "gen-d", place, replace=True)
    assert sorted(path.name for path in place.iterdir()) == ["gen-a", "gen-d"]
