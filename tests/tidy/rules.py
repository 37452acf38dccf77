"""The rules, as functions from source text to complaints, so that tests can show that each can fail."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
FOLDER_MODULES_MAX = 20

BUCKET_NAMES = frozenset(
    {"common", "helper", "helpers", "lib", "manager", "managers", "misc", "service", "services"}
    | {"shared", "stuff", "util", "utils"}
)
EMPTY_SUFFIXES = ("Abstract", "Helper", "Impl", "Manager", "Port", "Service", "UseCase", "Util", "Utils")
EMPTY_PREFIXES = ("Abstract",)

# Class names that may occur in several modules of the product, each with its reason.
SHARED_CLASS_NAMES: Mapping[str, str] = {}

# Retired words, each with the word to use instead. No name in the product may contain one.
RETIRED_WORDS: Mapping[str, str] = {
    "alarm": "timer or wakeup",
    "asides": "background tasks",
    "board": "dashboard",
    "books": "index",
    "briefing": "input",
    "circles": "loop",
    "desk": "client",
    "displacement": "relocation",
    "doings": "effects",
    "duties": "tasks or timers",
    "duty": "task or timer",
    "ears": "listener",
    "errand": "command handler",
    "errands": "command handlers",
    "glance": "snapshot",
    "happening": "activity",
    "heard": "received",
    "hearing": "receiving",
    "house": "context, host or court",
    "keyring": "locks",
    "lodging": "workplace",
    "lookout": "liveness or sources",
    "notebook": "log",
    "outfit": "setup or invocation",
    "patient": "context",
    "quarters": "environment",
    "said": "message, reply or text",
    "shelf": "index",
    "somebody": "user or person",
    "nobody": "none",
    "spoken": "result",
    "spoilt": "unreadable",
    "staff": "context",
    "stagehand": "runner",
    "standing": "status or state",
    "tellings": "details",
    "throwaway": "trial or temporary",
    "told": "seen, logged or described",
    "tormentor": "fault injector",
    "voice": "tools",
    "whoever": "caller",
}
# Words that a test name must not contain, because they refer to another sentence.
VAGUE_WORDS = frozenset(
    {"anew", "anybody", "everybody", "hear", "heard", "hears", "mended", "nobody", "said", "shall", "somebody"}
    | {"spoilt", "tells", "told", "whoever", "whom"}
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
_IGNORE_WITH_REASON = re.compile(r"\[[^\]]+\]\s+#\s*\S")

# Split, so that this file does not match its own rule.
PRIVATE_PATHS = re.compile(r"(?<![\w}.-])/" + "work" + r"/|(?<![\w/-])" + "shared" + "/")

PUBLIC_REGISTRY = frozenset({"pypi.org", "files.pythonhosted.org"})


def long_files(text: str) -> Iterator[str]:
    """Complain about files that are too long."""
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, {FILE_LINES_MAX} are allowed"


def long_functions(text: str) -> Iterator[str]:
    """Complain about functions that are too long."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed"


def bucket_names(path: PurePath) -> Iterator[str]:
    """Complain about modules and packages with names that say nothing about their content."""
    for part in path.with_suffix("").parts:
        if part.strip("_").lower() in BUCKET_NAMES:
            yield f"{part!r} does not say what the module is for"


def empty_class_names(text: str) -> Iterator[str]:
    """Complain about class names with a prefix or suffix that says nothing."""
    for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE):
        if name.endswith(EMPTY_SUFFIXES) or name.lstrip("_").startswith(EMPTY_PREFIXES):
            yield f"class {name} is not named after what it does"


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


def repeated_classes(texts: Mapping[str, str], shared: Mapping[str, str] = SHARED_CLASS_NAMES) -> Iterator[str]:
    """Complain about class names in several modules, and about unneeded exceptions."""
    names = Counter(name for text in texts.values() for name in re.findall(r"^class (\w+)", text, re.MULTILINE))
    for name in sorted(name for name, count in names.items() if count > 1 and name not in shared):
        places = [place for place, text in texts.items() if re.search(rf"^class {name}\b", text, re.MULTILINE)]
        yield f"class {name} is defined {names[name]} times: {', '.join(places)}"
    for name in sorted(name for name in shared if names[name] < 2):
        yield f"class {name} is defined {names[name]} times and needs no exception"


def retired_words(path: PurePath, text: str) -> Iterator[str]:
    """Complain about retired words in the names of a module and in the names that it defines."""
    defined = [*path.with_suffix("").parts, *_defined_names(ast.parse(text))]
    for name in dict.fromkeys(defined):
        for word in (word.lower() for word in _WORDS.findall(name)):
            if word in RETIRED_WORDS:
                yield f"{name}: {word!r} is retired, use {RETIRED_WORDS[word]}"


def vague_test_names(text: str) -> Iterator[str]:
    """Complain about test names that a reader must translate."""
    for name in _defined_names(ast.parse(text)):
        if name.startswith("test_") and (found := VAGUE_WORDS & set(name.split("_"))):
            yield f"{name}: say it without {', '.join(sorted(found))}"


def large_folders(modules: Iterable[PurePath]) -> Iterator[str]:
    """Complain about folders with too many modules."""
    for folder, count in Counter(path.parent for path in modules if path.name != "__init__.py").items():
        if count > FOLDER_MODULES_MAX:
            yield f"{folder} has {count} modules, {FOLDER_MODULES_MAX} are allowed"


def unexplained_ignores(text: str) -> Iterator[str]:
    """Complain about a `type: ignore` without its code or without a reason in a comment after it."""
    for number, line in enumerate(text.splitlines(), start=1):
        found = _TYPE_IGNORE.search(line)
        if found and not _IGNORE_WITH_REASON.match(found["rest"].strip()):
            yield f"line {number}: write `type: ignore[code]`, two spaces, `#` and the reason"


def hidden_imports(text: str) -> Iterator[str]:
    """Complain about imports of our own modules by a string, which import-linter does not see."""
    for node in ast.walk(ast.parse(text)):
        if not (
            isinstance(node, ast.Call) and node.args and _called_name(node.func) in ("import_module", "__import__")
        ):
            continue
        argument = node.args[0]
        start = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
        if isinstance(start, ast.Constant) and str(start.value).partition(".")[0] == "kingdom":
            yield f"line {node.lineno} imports {ast.unparse(argument)}: use a local import"


def _called_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
