"""The rules, as functions from source text to complaints, so that tests can show that each can fail."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50

BUCKET_NAMES = frozenset(
    {"common", "helper", "helpers", "lib", "manager", "managers", "misc", "service", "services"}
    | {"shared", "stuff", "tools", "util", "utils"}
)
EMPTY_SUFFIXES = ("Abstract", "Helper", "Impl", "Manager", "Port", "Service", "UseCase", "Util", "Utils")
EMPTY_PREFIXES = ("Abstract",)

# Split, so that this file does not match its own rule.
PRIVATE_PATHS = re.compile(r"(?<![\w}.-])/" + "work" + r"/|(?<![\w/-])" + "shared" + "/")

PUBLIC_REGISTRY = frozenset({"pypi.org", "files.pythonhosted.org"})


def long_files(text: str) -> Iterator[str]:
    """Complain about files that are too long."""
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, {FILE_LINES_MAX} are allowed"


def long_functions(text: str) -> Iterator[str]:
    """Complain about functions whose code, without the docstring, is too long."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _lines(node) - _docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed"


def bucket_names(path: PurePath) -> Iterator[str]:
    """Complain about modules and packages with names that say nothing about their content."""
    for part in path.with_suffix("").parts:
        if part.strip("_").lower() in BUCKET_NAMES:
            yield f"{part!r} does not say what the module is for"


def empty_class_names(text: str) -> Iterator[str]:
    """Complain about class names with an empty prefix or suffix."""
    for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE):
        if name.endswith(EMPTY_SUFFIXES) or name.lstrip("_").startswith(EMPTY_PREFIXES):
            yield f"class {name} is not named for its duty"


def private_paths(text: str) -> Iterator[str]:
    """Complain about paths that exist only on the machine of an author."""
    for number, line in enumerate(text.splitlines(), start=1):
        if PRIVATE_PATHS.search(line):
            yield f"line {number} names a private path: {line.strip()[:80]}"


def open_interpreters(text: str) -> Iterator[str]:
    """Complain about Python processes that import modules from the current directory, which an agent may control."""
    for option in re.findall(r'sys\.executable, "([^"]*)"', text):
        if option not in ("-P", "-I"):
            yield f"sys.executable, {option!r}: start it with -P or -I"


def private_registries(lock: str) -> Iterator[str]:
    """Complain about hosts in the lock file that are not public."""
    for host in sorted(set(re.findall(r"\w+://([^/\"\s]+)", lock)) - PUBLIC_REGISTRY):
        yield f"{host} is not the public registry"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _lines(node.body[0]) if ast.get_docstring(node) is not None else 0
