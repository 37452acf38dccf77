"""Check the changelog, the version, the issue forms, and the links of the top-level pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
# The fields that GitHub supports and requires; it does not show a form with any other.
FORM_FIELDS = {"name", "description", "labels", "title", "body"}
PARTS = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}, "dropdown": {"label", "options"}}
_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<day>\d{4}-\d\d-\d\d))?$", re.MULTILINE)
_KIND = re.compile(r"^### (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_changelog_begins_with_the_unreleased_changes_or_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    assert [heading["name"] for heading in headings][:1] in (["Unreleased"], [VERSION])
    released = [heading for heading in headings if heading["name"] != "Unreleased"]
    assert [heading["name"] for heading in released][:1] in ([], [VERSION])
    assert [heading["name"] for heading in released if not heading["day"]] == []
    assert set(_KIND.findall(text)) <= KINDS


def test_the_version_is_written_in_pyproject_and_nowhere_in_the_source() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    named = [path for path in (ROOT / "src").rglob("*.py") if "__version__" in path.read_text(encoding="utf-8")]
    assert named == []


def test_issues_need_one_of_three_forms_and_the_bug_form_asks_for_doctor_and_version() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    config = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert config == {"blank_issues_enabled": False}
    bug = FORMS[0].read_text()
    assert "kingdom doctor --json" in bug
    assert "kingdom --version" in bug


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_the_fields_that_github_requires(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys() <= FORM_FIELDS
    for part in form["body"]:
        assert PARTS[part["type"]] <= part["attributes"].keys()
        assert part.keys() <= {"type", "id", "attributes", "validations"}
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_of_a_page_next_to_the_code_are_valid(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [place for place in _LINK.findall(text) if not (ROOT / place).exists()] == []
