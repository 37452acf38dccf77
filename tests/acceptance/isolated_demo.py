"""Run the demo in its own directories, so that a test finds everything that it leaves behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


class IsolatedDemo:
    """A demo with its own home, working directory and temporary directory, by which a test finds its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary, self.home, self.here = (directory / name for name in ("temporary", "home", "here"))
        for each in (directory, self.temporary, self.home, self.here):
            each.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        # The store of the person who runs the tests must not be used.
        url = "postgresql://nobody@localhost:1/nowhere"
        return {**os.environ, "TMPDIR": str(self.temporary), "HOME": str(self.home), "KINGDOM_DATABASE_URL": url}

    def files(self) -> list[Path]:
        return [path for each in (self.temporary, self.home, self.here) for path in each.iterdir()]

    def processes(self) -> list[int]:
        return [process.pid for process in psutil.process_iter() if self._is_ours(process)]

    @contextmanager
    def demo(
        self, *options: str, by: tuple[str, ...] = (sys.executable, "-m", "kingdom"), **variables: str
    ) -> Iterator[subprocess.Popen[str]]:
        # Tests in the background of a shell, or under nohup, ignore these signals; a command in a terminal does not.
        command = ["env", "--default-signal=INT,HUP", *by, "demo", "--fast", "--json", *options]
        environment = {**self.environment, **variables}
        with (self.directory / "story").open("w") as story:
            process = subprocess.Popen(
                command, cwd=self.here, env=environment, stdout=subprocess.PIPE, stderr=story, text=True
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def story(self) -> str:
        return (self.directory / "story").read_text()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            values = [*process.environ().values(), *process.cmdline(), process.cwd()]
        except psutil.Error:
            return False
        return any(str(self.directory) in value for value in values)
