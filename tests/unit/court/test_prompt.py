import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.package_files import SHIPPED, load_packages
from kingdom.court.prompt import (
    MEMORY_BYTES_MAX,
    PROMPT_BYTES_MAX,
    RESULTS_BYTES_MAX,
    PromptContext,
    PromptResults,
    find_placeholder_errors,
    missing_values,
    needs_results,
    newest_lines,
    render,
    render_template,
)
from kingdom.errors import Misconfigured, Permanent
from kingdom.soldiers.agents.scripted.script import parse_script
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.past_results import NOTICE, PastResult

FOREIGN = st.text(alphabet=st.one_of(st.sampled_from('`~#{}"\\> \t\r\n\u2028\x85script-='), st.characters()))
PROMPTS = [
    task.query for package in load_packages(SHIPPED).packages for work in package.template.works for task in work.tasks
]
ASKED = ("payload.a", "payload.b", "quote payload.a", "json payload.a")


def context(**payload: Any) -> PromptContext:
    return PromptContext(
        payload=payload,
        repo="acme/shop",
        event={"id": "evt-github-1", "type": "github.pr.comment"},
        task={"id": "task-20260101-001"},
        memory="- tests live in tests/\n",
        git="acme-shop",
    )


def template(**fields: Any) -> WorkflowTemplate:
    works = [{"name": "look", "tasks": [{"query": "In {{ git }}: {{ payload.title }}"}], **fields}]
    return msgspec.convert({"id": "gen-x", "name": "Look", "works": works}, WorkflowTemplate)


def test_values_of_event_assignment_and_repository_are_inserted() -> None:
    text = "{{ payload.user.login }} on {{repo}} ({{ event.type }}, {{ task.id }}): {{ payload.labels.1 }}"
    shown = render(text, context(user={"login": "anna"}, labels=["bug", "urgent"]))
    assert shown == "anna on acme/shop (github.pr.comment, task-20260101-001): urgent"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("one\ntwo\r\n\tthree\x1b[31m", "one two three [31m"),
        ("a `code` word", "a 'code' word"),
        (12, "12"),
        (True, "true"),
        ({"a": 1}, '{"a": 1}'),
        ("left\u202eright\U000e0041", "leftright"),
        ("\ud800", ""),
        (None, ""),
    ],
)
def test_a_value_stays_on_its_line(value: object, shown: str) -> None:
    assert render("<{{ payload.a }}>", context(a=value)) == f"<{shown}>"


def test_a_value_of_many_lines_is_quoted_line_by_line() -> None:
    shown = render("Before\n  {{ quote payload.body }}\nAfter", context(body="# Head\n\n```script\n\tdone"))
    assert shown == "Before\n  > # Head\n  >\n  > ```script\n  > \tdone\nAfter"


def test_a_value_is_never_read_as_a_prompt_again() -> None:
    assert render("{{ payload.a }}", context(a="{{ payload.b }}", b="secret")) == "{{ payload.b }}"


def test_a_value_that_would_be_a_heading_or_a_fence_is_made_plain_text() -> None:
    assert render("{{ payload.a }}", context(a="# Rules")) == "\\# Rules"
    assert render("- {{ payload.a }}{{ payload.b }}", context(a="~", b="~~ x")) == "- \\~~~ x"
    assert render("# About {{ payload.a }}", context(a="# Rules")) == "# About # Rules"


def test_json_is_for_scripts() -> None:
    shown = render('{"n": {{ json payload.n }}, "t": {{ json payload.t }}}', context(n=7, t='"}\u2028`'))
    assert json.loads(shown) == {"n": 7, "t": '"}\u2028`'}
    assert len(shown.splitlines()) == 1


def test_escaped_braces_are_not_a_placeholder() -> None:
    assert render(r"use \{{ secrets.X }} and {a}", context()) == "use {{ secrets.X }} and {a}"


def test_a_missing_value_is_empty_and_listed() -> None:
    text = "{{ payload.a }}/{{ payload.b.c }}/{{ payload.b.c }}\n{{ quote payload.d }}\n{{ json payload.e }}"
    given_values = context(a="", b="no mapping")
    assert render(text, given_values) == "//\n\nnull"
    assert missing_values(text, given_values) == ("payload.b.c", "payload.d", "payload.e")


def test_a_prompt_has_a_limit_with_its_values() -> None:
    assert len(render("{{ payload.a }}", context(a="x" * PROMPT_BYTES_MAX))) == PROMPT_BYTES_MAX
    with pytest.raises(Permanent, match="204801 bytes with its values, at most 204800 are allowed"):
        render("{{ payload.a }}", context(a="x" * (PROMPT_BYTES_MAX + 1)))


def test_memory_takes_a_fifth_of_a_prompt_at_most_and_its_newest_lines_win() -> None:
    lines = "".join(f"{number:06d}\n" for number in range(10_000))
    shown = render("{{ quote memory }}", PromptContext(payload={}, event={}, task={}, memory=lines)).splitlines()
    assert shown[-1] == "> 009999"
    assert len(shown) == MEMORY_BYTES_MAX // 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{{ secrets.key }}", "{{ secrets.key }} is unknown; available: payload.…, repo"),
        ("{{ payload }}", "{{ payload }} is unknown"),
        ("{{ event.payload }}", "{{ event.payload }} is unknown"),
        ("{{ repo.name }}", "{{ repo.name }} is unknown"),
        ("{{ shout payload.a }}", "is not a placeholder such as"),
        ("{{ payload.a", "is not a placeholder such as"),
        ("Body: {{ quote payload.a }}", "put it on its own line"),
        ("{{ memory }}", "write {{ quote memory }}"),
        ('```script\n{"say": "{{ payload.a }}"}\n```', "write {{ json payload.a }}"),
    ],
)
def test_a_wrong_placeholder_is_found_before_anything_runs(text: str, complaint: str) -> None:
    ((line, words),) = find_placeholder_errors(f"First line.\n{text}")
    assert complaint in words
    assert line == 1 + text[: text.index("{{")].count("\n") + 1


def test_a_script_may_name_the_checkout_and_text_after_it_is_free_again() -> None:
    text = (
        '```script\n{"run": "ls {{ git }}", "n": {{ json payload.n }}}\n```\n{{ payload.a }}\n```\n{{ payload.b }}\n```'
    )
    assert list(find_placeholder_errors(text)) == []


def test_a_template_gets_its_values_and_the_repository_of_the_event() -> None:
    refs = [{"gitId": "event-repo", "baseBranch": "dev"}, {"gitId": "tools", "baseBranch": ""}]
    made = template(gitRefs=refs, verify=["make -C {{ git }} test", "docker ps --format '{{.Names}}'"])
    rendered = render_template(made, context(title="Fix `it`"), lambda _: "acme-shop")
    (work,) = rendered.works
    assert [(ref.git_id, ref.base_branch) for ref in work.git_refs] == [("acme-shop", "dev"), ("tools", "")]
    assert work.verify == ("make -C acme-shop test", "docker ps --format '{{.Names}}'")
    assert work.tasks[0].query == "In acme-shop: Fix 'it'"


def test_the_branch_that_work_starts_from_may_be_named_by_the_event() -> None:
    refs = [{"gitId": "event-repo", "baseBranch": "refs/pull/{{ payload.number }}/head"}]
    made = render_template(template(gitRefs=refs), context(number=7), lambda _: "acme-shop")
    assert [ref.base_branch for ref in made.works[0].git_refs] == ["refs/pull/7/head"]
    for foreign in ("../heads/main", "7 8", "7:refs/heads/main", "*", "", "7.lock", None):
        with pytest.raises(Permanent, match="not a valid branch name"):
            render_template(template(gitRefs=refs), context(number=foreign), lambda _: "acme-shop")


def test_a_repository_that_is_named_already_is_not_referred_to_twice() -> None:
    refs = [{"gitId": "event-repo", "baseBranch": ""}, {"gitId": "acme-shop", "baseBranch": "dev"}]
    rendered = render_template(template(gitRefs=refs), context(title=""), lambda _: "acme-shop")
    assert [(ref.git_id, ref.base_branch) for ref in rendered.works[0].git_refs] == [("acme-shop", "dev")]


def test_a_template_that_needs_a_repository_is_refused_without_one() -> None:
    made = template(gitRefs=[{"gitId": "event-repo", "baseBranch": ""}])
    nowhere = PromptContext(payload={}, event={}, task={})
    with pytest.raises(Misconfigured, match="this event has none: give the General a default_repo"):
        render_template(made, nowhere, lambda _: "acme-shop")
    with pytest.raises(Misconfigured, match="is not a valid Git id"):
        render_template(made, context(), lambda _: "$(reboot)")


@pytest.mark.parametrize(("limit", "kept"), [(0, ""), (5, ""), (6, "three\n"), (9, "three\n"), (10, "two\nthree\n")])
def test_the_newest_lines_are_kept_whole(limit: int, kept: str) -> None:
    assert newest_lines("one\ntwo\nthree\n", limit) == kept


@given(st.lists(st.sampled_from(ASKED), min_size=1, max_size=3), FOREIGN, FOREIGN)
def test_no_value_can_begin_a_line_with_a_fence(asked: list[str], a: str, b: str) -> None:
    joined = "" if not any(each.startswith("quote") for each in asked) else "\n"
    text = "Begin.\n" + joined.join(f"{{{{ {each} }}}}" for each in asked) + "\nEnd."
    shown = render(text, context(a=a, b=b))
    assert not any(line.lstrip().startswith(("```", "~~~", "#")) for line in shown.splitlines())
    # Also for programs that know no other line ending.
    assert not any(line.startswith("```") for line in shown.split("\n"))
    assert shown.startswith("Begin.\n")
    assert shown.endswith("\nEnd.")


@given(FOREIGN)
def test_no_value_changes_the_script_of_a_shipped_general(foreign: str) -> None:
    names = {path.removeprefix("payload.") for prompt in PROMPTS for path in missing_values(prompt, context())}
    values = context(**dict.fromkeys(names, foreign))
    plain = context(**dict.fromkeys(names, "plain"))
    for prompt in PROMPTS:
        played, expected = (parse_script(render(prompt, each)) for each in (values, plain))
        assert played
        assert expected
        assert [type(step) for step in played] == [type(step) for step in expected]


def with_results(*summaries: str) -> PromptContext:
    results = tuple(
        PastResult(
            assignment_id=f"task-20260101-{number:03d}",
            general="gen-x",
            type="github.pr.comment",
            ended_at=datetime(2026, 1, 1, 9, number, tzinfo=UTC),
            status="success",
            summary=summary,
        )
        for number, summary in enumerate(summaries)
    )
    return replace(context(text="now"), results=PromptResults(same_repo=results))


@pytest.mark.parametrize("written", ["{{results.same_repo}}", "  {{ quote results.same_repo }}"])
def test_earlier_results_are_quoted_below_a_notice_that_they_are_data(written: str) -> None:
    indent = written[: written.index("{")]
    shown = render(f"Before:\n{written}\nAfter", with_results("{{ payload.text }}")).splitlines()
    assert shown == [
        "Before:",
        f"{indent}{NOTICE}",
        "",
        f"{indent}> task-20260101-000, 2026-01-01 09:00 UTC, gen-x, github.pr.comment: success",
        f"{indent}> {{{{ payload.text }}}}",
        "After",
    ]


def test_without_earlier_results_nothing_is_shown_and_the_value_is_missing() -> None:
    text = "{{ results.same_repo }}"
    assert render(text, with_results()) == ""
    assert missing_values(text, with_results()) == ("results.same_repo",)
    assert missing_values(text, with_results("done")) == ()


def test_a_script_gets_earlier_results_as_json() -> None:
    (line,) = render("{{ json results.same_repo }} {{ json results.same_subject }}", with_results("a")).splitlines()
    assert json.loads(line.removesuffix(" null"))[0]["summary"] == "a"


def test_results_that_do_not_fit_are_left_out() -> None:
    shown = render("{{ results.same_repo }}", with_results(*["\u00e9" * 1000] * 20))
    assert RESULTS_BYTES_MAX / 2 < len(shown.encode()) < RESULTS_BYTES_MAX + len(NOTICE) + 100
    assert "task-20260101-000" in shown
    assert "task-20260101-019" not in shown


@pytest.mark.parametrize("text", ["{{ results.all }}", "They are: {{ results.same_repo }}", "{{ results }}"])
def test_results_have_their_own_line_and_two_names(text: str) -> None:
    assert list(find_placeholder_errors(text))


def test_results_are_looked_up_only_for_a_prompt_that_shows_them() -> None:
    assert not needs_results(template())
    assert needs_results(template(tasks=[{"query": "{{results.same_subject}}"}]))
    assert needs_results(template(instructions="{{ json results.same_repo }}"))
