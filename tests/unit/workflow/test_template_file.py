"""Templates as YAML: easy to write, parsed strictly, and unchanged after writing and reading."""

from typing import Any

import msgspec
import pytest

from kingdom.errors import Misconfigured
from kingdom.workflow import template_file
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.model.resources.template import (
    OverBudget,
    RunPolicy,
    TaskDefinition,
    WorkDefinition,
    WorkflowTemplate,
)
from kingdom.workflow.template_file import read_template, write_template

SHORT = """\
name: Fix the bug
gitRefs: [app, {gitId: lib, baseBranch: dev}]
mcpServerRefs: [tools, {mcpServerId: search, env: {LEVEL: "1", QUIET: ""}}]
works:
  - name: analyse
    tasks:
      - Find the cause.
      - query: |
          Write down what you found.
          Be brief.
        reportOutline:
          - title: Findings
          - {title: Cause, description: "why: and how"}
        timeoutSeconds: 60
  - name: repair
    model: large
    gitRefs: [app]
    tasks: [Repair it.]
    verify: [make check]
    pauseAfter: true
policy: {retries: 2, budgetUsd: 2.5, overBudget: stop}
"""
WHOLE = WorkflowTemplate(
    id="fix-the-bug",
    name="Fix the bug",
    git_refs=(GitRef(git_id="app", base_branch=""), GitRef(git_id="lib", base_branch="dev")),
    mcp_server_refs=(
        McpServerRef(mcp_server_id="tools"),
        McpServerRef(mcp_server_id="search", env={"LEVEL": "1", "QUIET": ""}),
    ),
    works=(
        WorkDefinition(
            name="analyse",
            tasks=(
                TaskDefinition(query="Find the cause."),
                TaskDefinition(
                    query="Write down what you found.\nBe brief.\n",
                    report_outline=(
                        ReportSection(title="Findings"),
                        ReportSection(title="Cause", description="why: and how"),
                    ),
                    timeout_seconds=60,
                ),
            ),
        ),
        WorkDefinition(
            name="repair",
            model="large",
            git_refs=(GitRef(git_id="app", base_branch=""),),
            tasks=(TaskDefinition(query="Repair it."),),
            verify=("make check",),
            pause_after=True,
        ),
    ),
    policy=RunPolicy(retries=2, budget_usd=2.5, over_budget=OverBudget.STOP),
)
SMALLEST = "name: Small\nworks: [{name: only, tasks: [Do it.]}]\n"


def test_shorthand_and_long_form_become_one_template() -> None:
    assert read_template(SHORT, "t.yaml") == WHOLE


def test_a_template_is_the_same_after_a_round_trip_through_a_file() -> None:
    written = write_template(WHOLE)
    assert read_template(written, "t.yaml") == WHOLE
    assert "query: |\n      Write down what you found.\n      Be brief.\n" in written


@pytest.mark.parametrize(
    "text", ["yes", "1.0", "- no list", "a: b", "# no comment", " spaces ", "tab\there", "🙂\nü", "'\""]
)
def test_any_text_survives_a_file(text: str) -> None:
    template = read_template(SMALLEST, "t.yaml")
    strange = msgspec.structs.replace(template, description=text, works=(WHOLE.works[0],))
    assert read_template(write_template(strange), "t.yaml") == strange


def test_default_values_are_not_written() -> None:
    assert write_template(read_template(SMALLEST, "t.yaml")) == (
        "id: small\nname: Small\nworks:\n- name: only\n  tasks:\n  - query: Do it.\n"
    )


def test_the_id_comes_from_the_file_else_from_the_caller_else_from_the_name() -> None:
    assert read_template(f"id: chosen\n{SMALLEST}", "t.yaml", template_id="other").id == "chosen"
    assert read_template(SMALLEST, "t.yaml", template_id="other").id == "other"
    assert read_template(SMALLEST, "t.yaml").id == "small"
    with pytest.raises(Misconfigured, match=r"t\.yaml: no id can be derived from the name '!': add a field `id`"):
        read_template(SMALLEST.replace("Small", "'!'"), "t.yaml")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (
            SHORT.replace("query:", "queri:"),
            "t.yaml:8: works[0].tasks[1].queri: unknown field; known fields: query,",
        ),
        (
            SHORT.replace("title: Findings", "titel: Findings"),
            "t.yaml:12: works[0].tasks[1].reportOutline[0].titel: unknown field",
        ),
        (
            SHORT.replace("verify:", "check:"),
            "t.yaml:19: works[1].check: unknown field; known fields: name, tasks,",
        ),
        (SHORT.replace("retries", "tries"), "t.yaml:21: policy.tries: unknown field; known fields: retries"),
        (SHORT.replace("baseBranch: dev", "branch: dev"), "t.yaml:2: gitRefs[1].branch: unknown field; known"),
        (
            SHORT.replace("baseBranch: dev", "baseBranch: 1.0"),
            "t.yaml:2: gitRefs[1].baseBranch: must be text, not a decimal number",
        ),
        (SHORT.replace("[Repair it.]", "[]"), "t.yaml:18: works[1].tasks: must be a list with a length of at least 1"),
        (
            SHORT.replace("[Repair it.]", "[7]"),
            "t.yaml:18: works[1].tasks[0]: must be text or a block of fields, not a whole number",
        ),
        (SHORT.replace("retries: 2", "retries: -1"), "t.yaml:21: policy.retries: must be a whole number of at least 0"),
        (
            SHORT.replace("budgetUsd: 2.5", "budgetUsd: 0"),
            "t.yaml:21: policy.budgetUsd: must be a number of more than 0",
        ),
        (
            SHORT.replace("overBudget: stop", "overBudget: go"),
            "t.yaml:21: policy.overBudget: 'go' is not one of the allowed values",
        ),
        (SHORT.replace("gitRefs: [app]", "gitRefs: [App]"), "t.yaml:17: works[1].gitRefs[0]: must be text"),
        (SHORT.replace("gitId: lib", "gitId: app"), "t.yaml: app is referred to twice in one list"),
        (f"deleted: true\n{SMALLEST}", "t.yaml:1: deleted: unknown field"),
        ("name: x\n", "t.yaml:1: the file: the field works is missing"),
        ("", "t.yaml:1: the file: must be a block of fields, but it is empty"),
        ("- a\n", "t.yaml:1: the file: must be a block of fields, not a list"),
        ("name: a\nworks: [\n", "t.yaml:3:1: this is not valid YAML: while parsing a flow node"),
        ("name: a\n\tworks: []\n", "t.yaml:2:1: this is not valid YAML"),
        ("name: a\n---\nname: b\n", "t.yaml:2:1: this is not valid YAML: expected a single document"),
        ("name: !!python/name:os.system\n", "t.yaml:1:7: this is not valid YAML: could not determine"),
        ("name: \0\n", "t.yaml: this is not valid YAML: unacceptable character"),
        (f"{SMALLEST}name: Again\n", "t.yaml:3: name appears twice: remove one"),
        ("? [a, b]\n: c\n", "t.yaml:1: a field name must be text"),
        ("1: x\n", "t.yaml:1: the file: must be text"),
    ],
)
def test_an_error_names_the_line_and_the_place(wrong: str, complaint: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        read_template(wrong, "t.yaml")
    assert complaint in str(refused.value)


def test_an_alias_may_repeat_but_not_contain_itself() -> None:
    repeated = "name: Twice\nworks: [{name: a, tasks: &tasks [Do it.]}, {name: b, tasks: *tasks}]\n"
    first, second = read_template(repeated, "t.yaml").works
    assert first.tasks == second.tasks
    with pytest.raises(Misconfigured, match=r"t\.yaml:2:8: .*an alias contains itself"):
        read_template("name: a\nworks: &w [*w]\n", "t.yaml")


@pytest.mark.parametrize(
    ("entry", "definition"),
    [
        (template_file.SectionEntry, ReportSection),
        (template_file.TaskEntry, TaskDefinition),
        (template_file.GitRefEntry, GitRef),
        (template_file.McpServerRefEntry, McpServerRef),
        (template_file.WorkEntry, WorkDefinition),
        (template_file.PolicyEntry, RunPolicy),
        (template_file.TemplateFile, WorkflowTemplate),
    ],
)
def test_a_file_has_exactly_the_fields_of_a_template(entry: Any, definition: Any) -> None:
    def names(of: Any) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(of)}

    assert names(entry) == names(definition) - {"deleted"}
