"""Which changed paths a person must approve."""

import pytest

from kingdom.court.package import PROTECTED_PATHS
from kingdom.court.petitions.commits import protected_paths


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/ci.yml",
        ".GitHub/CODEOWNERS",
        ".github",
        "docs/CODEOWNERS",
        ".gitmodules",
        "lib/.gitattributes",
        "tools/release/action.yml",
        ".gitlab-ci.yml",
        ".circleci/config.yml",
        "ci/Jenkinsfile.release",
        "azure-pipelines.yml",
    ],
)
def test_files_that_ci_and_reviews_depend_on_are_protected_by_default(path: str) -> None:
    assert protected_paths([path, "src/app.py"], PROTECTED_PATHS) == [path]


@pytest.mark.parametrize("path", ["src/github.py", "docs/actions.md", "github/workflows/ci.yml", ".gitignore"])
def test_other_files_are_not_protected(path: str) -> None:
    assert protected_paths([path], PROTECTED_PATHS) == []


def test_a_pattern_with_a_slash_starts_at_the_root_and_a_folder_includes_what_is_in_it() -> None:
    paths = ["deploy/live/a.tf", "old/deploy/live/a.tf", "deploy/test/a.tf"]
    assert protected_paths(paths, ["deploy/live"]) == ["deploy/live/a.tf"]
    assert protected_paths(paths, ["deploy/*/a.tf"]) == ["deploy/live/a.tf", "deploy/test/a.tf"]
