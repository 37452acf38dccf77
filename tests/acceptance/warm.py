"""Processes of the command line that need not read the house from the disk: one has read all of it, and forks."""

import ctypes
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kingdom.cli.main import main
from kingdom.cli.nouns import NOUNS, module_of
from tests.patience import PATIENCE_SECONDS

_ROOT = Path(__file__).parents[2]


def run(words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], text: str = "") -> tuple[int, str, str]:
    """Run a command in a process of its own; return how it ended, what it said and what it complained of."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    with TemporaryDirectory() as directory:
        files = [Path(directory) / name for name in ("in", "out", "err")]
        files[0].write_text(text)
        process = server.Process(target=_be_a_command, args=(words, cwd, dict(environment), files))
        process.start()
        process.join(PATIENCE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            said = f"{files[1].read_text()} {files[2].read_text()}"
            pytest.fail(f"{words} has not ended after {PATIENCE_SECONDS} s: {said}")
        return process.exitcode, files[1].read_text(), files[2].read_text()


def _be_a_command(words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], files: list[Path]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for number, (file, mode) in enumerate(zip(files, ("rb", "wb", "wb"), strict=True)):
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    _forget_the_tests(cwd)
    sys.argv = ["kingdom", *words]
    code: str | int | None = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    # Some complain only when the interpreter ends, which a forked process would leave out.
    ctypes.pythonapi.Py_Exit(code)


def _forget_the_tests(cwd: Path) -> None:
    """Find only what `python -m` finds in this directory."""
    sys.path[:] = [str(cwd), *(place for place in sys.path if place and Path(place) != _ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
        del sys.modules[name]


for noun in NOUNS:
    import_module(module_of(noun))
# A forked process would copy whatever is looked through for waste, which takes longer than most commands.
gc.freeze()
