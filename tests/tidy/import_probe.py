"""Import every module of a package, each in its own fork, and print the side effects as JSON."""

import ast
import compileall
import contextlib
import gc
import importlib
import inspect
import json
import os
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

STARTS = {
    "socket.__new__": "opens a socket",
    "subprocess.Popen": "starts a process",
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "os.mkdir": "changes files",
    "os.remove": "changes files",
    "os.rename": "changes files",
    "os.rmdir": "changes files",
    "sqlite3.connect": "opens a database",
}
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
BETWEEN = frozenset({__file__, os.__file__, "<frozen os>", "<frozen _collections_abc>"})


def modules_of(source: Path, package: str) -> list[str]:
    """Return the dotted names of all modules of a package."""
    paths = [path.relative_to(source).with_suffix("") for path in (source / package).rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return sorted(name for name in names if not name.endswith("__main__"))


def by_layers(modules: list[str]) -> Iterator[list[str]]:
    """Yield the modules outside of all layers, then those of each layer from the lowest to the highest."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [tuple(f"{name}." for name in re.findall(r"[\w.]+", layer)) for layer in reversed(layers)]
    every = tuple(name for layer in names for name in layer)
    yield [module for module in modules if not f"{module}.".startswith(every)]
    for layer in names:
        yield [module for module in modules if f"{module}.".startswith(layer)]


def load_foreign(source: Path, package: str) -> None:
    """Import the third-party modules of the package, so that only its own side effects are seen later."""
    for path in (source / package).rglob("*.py"):
        for name in _imported(ast.parse(path.read_text())):
            if name.partition(".")[0] != package:
                # An extra may be missing; the module that needs it then reports that.
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)


def side_effects_of(module: str, source: Path) -> list[str]:
    """Import a module in a fork and return its side effects."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.write(writer, json.dumps(_watched_import(module, source)).encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        words = answer.read()
    os.wait()
    found: list[str] = json.loads(words) if words else ["ends the process"]
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _watched_import(module: str, source: Path) -> list[str]:
    seen: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in STARTS:
            seen.append(f"{STARTS[event]} ({event})")
        elif watching and event == "open" and int(str(arguments[2])) & WRITING_FLAGS:
            seen.append(f"opens {arguments[0]} for writing")

    _report_environment_reads(seen, str(source))
    _report_threads(seen)
    sys.addaudithook(watch)
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - any exception of an import is a finding
        seen.append(f"cannot be imported: {type(error).__name__}: {error}")
    watching = False
    return seen


def _report_environment_reads(seen: list[str], source: str) -> None:
    environ = type(os.environ)
    read, iterate = environ.__getitem__, environ.__iter__

    def reading(self: os._Environ[str], key: str) -> str:
        _note_reader(seen, source, key)
        return read(self, key)

    def iterating(self: os._Environ[str]) -> Iterator[str]:
        _note_reader(seen, source, "all of it")
        return iterate(self)

    # Reading the environment raises no audit event, so replace its two readers.
    _replace(environ, "__getitem__", reading)
    _replace(environ, "__iter__", iterating)


def _report_threads(seen: list[str]) -> None:
    start = threading.Thread.start

    def starting(self: threading.Thread) -> None:
        seen.append(f"starts a thread ({self.name})")
        start(self)

    # Starting a thread raises an audit event only since Python 3.12.
    _replace(threading.Thread, "start", starting)


def _replace(owner: type, name: str, method: object) -> None:
    setattr(owner, name, method)


def _note_reader(seen: list[str], source: str, what: str) -> None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in BETWEEN:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.startswith(source):
        seen.append(f"reads the environment ({what})")


def main() -> None:
    """Probe the package of the arguments: its source folder and its name."""
    source, package = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    load_foreign(source, package)
    # Otherwise every fork would compile every module again.
    compileall.compile_dir(source / package, quiet=2)
    # Garbage collection in a fork would copy the shared memory.
    gc.disable()
    found: dict[str, list[str]] = {}
    for modules in by_layers(modules_of(source, package)):
        found |= {module: side_effects_of(module, source) for module in modules}
        for module in modules:
            # Forks for higher layers then do not import it again.
            if not found[module]:
                importlib.import_module(module)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
