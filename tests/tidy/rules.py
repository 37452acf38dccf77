"""The rules as functions from source text to complaints, so that each can be shown to fail."""

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

# Spelled in parts, so that this file does not name them itself.
PRIVATE_PATHS = re.compile(r"(?<![\w}.-])/" + "work" + r"/|(?<![\w/-])" + "shared" + "/")

PUBLIC_REGISTRY = frozenset({"pypi.org", "files.pythonhosted.org"})


def long_files(text: str) -> Iterator[str]:
    """Complain of a file that is too long to be about one thing."""
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, {FILE_LINES_MAX} are allowed"


def long_functions(text: str) -> Iterator[str]:
    """Complain of functions whose code, without its docstring, is too long to be seen at once."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _lines(node) - _docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed"


def bucket_names(path: PurePath) -> Iterator[str]:
    """Complain of modules and packages that are named for holding things, not for a duty."""
    for part in path.with_suffix("").parts:
        if part.strip("_").lower() in BUCKET_NAMES:
            yield f"{part!r} does not say what the module is for"


def empty_class_names(text: str) -> Iterator[str]:
    """Complain of class names whose ending says nothing of the class's duty."""
    for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE):
        if name.endswith(EMPTY_SUFFIXES) or name.lstrip("_").startswith(EMPTY_PREFIXES):
            yield f"class {name} is not named for its duty"


def private_paths(text: str) -> Iterator[str]:
    """Complain of paths that exist only on the machine of an author."""
    for number, line in enumerate(text.splitlines(), start=1):
        if PRIVATE_PATHS.search(line):
            yield f"line {number} names a private path: {line.strip()[:80]}"


def open_interpreters(text: str) -> Iterator[str]:
    """Complain of Python started so that modules in the current directory, which may be an agent's, come first."""
    for option in re.findall(r'sys\.executable, "([^"]*)"', text):
        if option not in ("-P", "-I"):
            yield f"sys.executable, {option!r}: start it with -P or -I"


def private_registries(lock: str) -> Iterator[str]:
    """Complain of hosts in the lock file that not everybody can reach."""
    for host in sorted(set(re.findall(r"\w+://([^/\"\s]+)", lock)) - PUBLIC_REGISTRY):
        yield f"{host} is not the public registry"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _lines(node.body[0]) if ast.get_docstring(node) is not None else 0
