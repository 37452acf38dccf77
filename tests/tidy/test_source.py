from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath

import pytest

from tests.tidy import rules

ROOT = Path(__file__).parents[2]
CODE = ("src", "tests", "bench")
TEXT = (*CODE, "docs", "examples", ".ci")
TEXT_SUFFIXES = frozenset({"", ".cfg", ".css", ".html", ".js", ".json", ".md", ".py", ".sql", ".toml", ".yaml", ".yml"})


def python_files() -> list[Path]:
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    found = [path for folder in TEXT for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    # In a linked worktree, `.git` is a file that contains a private path.
    return sorted(path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name != ".git")


def complaints(rule: Callable[[str], Iterator[str]], files: Iterable[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {words}" for path in files for words in rule(path.read_text())]


@pytest.mark.parametrize("rule", [rules.long_files, rules.long_functions, rules.empty_class_names])
def test_code_keeps_the_rule(rule: Callable[[str], Iterator[str]]) -> None:
    assert complaints(rule, python_files()) == []


def source_files() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("rule", [rules.unexplained_ignores, rules.hidden_imports])
def test_the_product_keeps_the_rule(rule: Callable[[str], Iterator[str]]) -> None:
    assert complaints(rule, source_files()) == []


def test_no_class_name_of_the_product_occurs_twice() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in source_files()}
    assert list(rules.repeated_classes(texts)) == []


def test_no_name_of_the_product_has_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {words}"
        for path in source_files()
        for words in rules.retired_words(path.relative_to(ROOT), path.read_text())
    ]
    assert found == []


def test_test_names_have_no_vague_words() -> None:
    assert complaints(rules.vague_test_names, sorted((ROOT / "tests").rglob("test_*.py"))) == []


def test_no_folder_of_the_product_has_too_many_modules() -> None:
    assert list(rules.large_folders(path.relative_to(ROOT) for path in source_files())) == []


def test_modules_are_named_for_their_responsibility() -> None:
    names = [path.relative_to(ROOT) for path in python_files()]
    assert [f"{name}: {words}" for name in names for words in rules.bucket_names(name)] == []


def test_no_text_names_a_private_path() -> None:
    assert complaints(rules.private_paths, text_files()) == []


def test_no_process_of_ours_runs_files_of_the_current_directory() -> None:
    assert complaints(rules.open_interpreters, (ROOT / "src").rglob("*.py")) == []


def test_the_lock_file_names_only_the_public_registry() -> None:
    assert complaints(rules.private_registries, [ROOT / "uv.lock"]) == []


def test_the_walk_sees_code_tests_and_benchmarks() -> None:
    seen = {path.relative_to(ROOT).as_posix() for path in python_files()}
    assert {"src/kingdom/__init__.py", "tests/tidy/rules.py", "bench/postgres.py"} <= seen
    assert {ROOT / "pyproject.toml", ROOT / "docs/index.md", ROOT / ".ci/run"} <= set(text_files())


def function_of(lines: int, docstring: str = "") -> str:
    return "def sample():\n" + docstring + "    pass\n" * (lines - 1)


BAD = [
    (rules.long_files, "pass\n" * 401),
    (rules.long_functions, function_of(51)),
    (rules.long_functions, function_of(47, '    """Say so.\n\n    More of it.\n    """\n')),
    (rules.long_functions, "class Sample:\n    async def sample(self):\n" + "        pass\n" * 50),
    (rules.empty_class_names, "class JobManager: ..."),
    (rules.empty_class_names, "class StartWorkUseCase: ..."),
    (rules.empty_class_names, "class _AbstractBus: ..."),
    (rules.private_paths, "see /" + "work/notes"),
    (rules.private_paths, "as `shared" + "/page.md` says"),
    (rules.open_interpreters, '(sys.executable, "-m", "kingdom")'),
    (rules.private_registries, 'source = { registry = "https://mirror.example/simple" }'),
    (rules.unexplained_ignores, "x = y  # type: ignore"),
    (rules.unexplained_ignores, "x = y  # type: ignore  # it works"),
    (rules.unexplained_ignores, "x = y  # type: ignore[arg-type]"),
    (rules.hidden_imports, 'bus = import_module("kingdom.bus")'),
    (rules.hidden_imports, 'bus = importlib.import_module(f"kingdom.{name}")'),
    (rules.hidden_imports, '__import__("kingdom")'),
]

GOOD = [
    (rules.long_files, "pass\n" * 400),
    (rules.long_functions, function_of(50)),
    (rules.empty_class_names, "class Report: ...\nclass LeaseReaper: ..."),
    (rules.private_paths, "GET /api/work/3, /runs/{id}/work/3, a shared lock"),
    (rules.open_interpreters, '(sys.executable, "-P", "-m", "kingdom")'),
    (rules.private_registries, 'url = "https://files.pythonhosted.org/packages/a.whl"'),
    (rules.unexplained_ignores, "x = y  # type: ignore[arg-type]  # the library has no type hints"),
    (rules.hidden_imports, 'anyio = import_module("anyio")\nkingdoms = import_module("kingdoms")\nfind("kingdom.bus")'),
    (rules.hidden_imports, "from kingdom import bus"),
]


@pytest.mark.parametrize(("rule", "sample"), BAD)
def test_a_rule_complains_of_a_bad_sample(rule: Callable[[str], Iterator[str]], sample: str) -> None:
    assert list(rule(sample)) != []


@pytest.mark.parametrize(("rule", "sample"), GOOD)
def test_a_rule_accepts_a_good_sample(rule: Callable[[str], Iterator[str]], sample: str) -> None:
    assert list(rule(sample)) == []


def test_a_class_name_that_occurs_twice_is_found() -> None:
    texts = {"a.py": "class Report: ...\nclass Query: ...", "b.py": "class Report(Base): ...\nclass Other: ..."}
    assert list(rules.repeated_classes(texts, {})) == ["class Report is defined 2 times: a.py, b.py"]
    assert list(rules.repeated_classes(texts, {"Report": "two views of one thing"})) == []


def test_an_exception_that_is_not_needed_is_found() -> None:
    texts = {"a.py": "class Report: ...", "b.py": "class Other: ..."}
    assert list(rules.repeated_classes(texts, {"Report": "it stood twice"})) != []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/kingdom/quarters.py", ""),
        ("src/kingdom/voice/relay.py", ""),
        ("src/kingdom/a.py", "class HouseVoice: ..."),
        ("src/kingdom/a.py", "def what_was_told(): ..."),
        ("src/kingdom/a.py", "def run(lookout): ..."),
        ("src/kingdom/a.py", "BOOKS = []"),
        ("src/kingdom/a.py", "self._house = 1"),
    ],
)
def test_a_retired_word_is_found(name: str, text: str) -> None:
    assert list(rules.retired_words(PurePath(name), text)) != []


def test_a_vague_test_name_is_found() -> None:
    assert list(rules.vague_test_names("def test_whoever_waits_is_told(): ...")) != []
    assert list(rules.vague_test_names("def test_a_waiting_sender_is_notified(): ...\ndef told(): ...")) == []


def test_words_that_only_contain_a_retired_one_are_accepted() -> None:
    text = "class Invoice: ...\ndef household(): ...\ncookbooks = HTTPServer()\nprint('the house', quarters)\n"
    assert list(rules.retired_words(PurePath("src/kingdom/bookshelf.py"), text)) == []


def test_a_folder_with_too_many_modules_is_found() -> None:
    modules = [PurePath(f"src/kingdom/bus/m{number}.py") for number in range(21)]
    assert list(rules.large_folders(modules)) != []
    assert list(rules.large_folders([*modules[1:], PurePath("src/kingdom/bus/__init__.py")])) == []


@pytest.mark.parametrize("name", ["src/kingdom/utils.py", "src/kingdom/common/ids.py", "tests/_helpers.py"])
def test_a_bucket_name_is_found(name: str) -> None:
    assert list(rules.bucket_names(PurePath(name))) != []


def test_a_plain_name_is_accepted() -> None:
    assert list(rules.bucket_names(PurePath("src/kingdom/bus/lease.py"))) == []
