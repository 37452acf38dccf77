"""Runs from the real command line: a repository, templates for the scripted agent, and one engine with a host."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.terminal import Done, Running, Terminal, eventually

HOST = "box"


def script(*steps: dict[str, object]) -> str:
    """Return a prompt for the scripted agent."""
    return "Follow the script.\n```script\n" + "\n".join(json.dumps(step) for step in steps) + "\n```\n"


def write(name: str, text: str) -> dict[str, object]:
    return {"write": f"app/{name}", "text": f"{text}\n"}


class Runs:
    """A terminal whose store knows the repository `app`."""

    def __init__(self, terminal: Terminal, directory: Path) -> None:
        self.terminal = terminal
        self.directory = directory
        app = directory / "app"
        app.mkdir()
        identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@localhost")
        for words in (("init", "-b", "main"), (*identity, "commit", "--allow-empty", "-m", "Begin")):
            subprocess.run(["git", "-C", str(app), *words], check=True, capture_output=True)
        terminal.run_json("git", "create", "app", str(app))

    def template(self, name: str, *works: dict[str, object]) -> None:
        document = {"name": name, "gitRefs": ["app"], "works": list(works)}
        self.terminal.run_json("template", "create", "-", text=yaml.safe_dump(document))

    def run(self, *words: str, text: str = "") -> Done:
        return self.terminal.run("workflow", *words, text=text)

    def run_json(self, *words: str) -> Any:
        return self.terminal.run_json("workflow", *words)

    def reaches(self, workflow_id: str, status: str) -> dict[str, Any]:
        """Wait until a run has a status, and return the run."""

        def look() -> dict[str, Any] | bool:
            workflow: dict[str, Any] = self.run_json("show", workflow_id)["workflow"]
            return workflow["status"] == status and workflow

        return eventually(look)

    def tree(self, workflow_id: str) -> Path:
        """Return the checkout of a run."""
        return self.host_directory / "runs" / workflow_id / "trees" / f"{workflow_id}-tree1"

    @property
    def host_directory(self) -> Path:
        return self.directory / "realm" / "soldiers" / HOST

    @contextlib.contextmanager
    def engine(self, *words: str) -> Iterator[Running]:
        with self.terminal.start("role", "engine", "--host", "--name", HOST, "--json-logs", *words) as engine:
            engine.logs("host registered")
            yield engine
            engine.process.terminate()
            assert engine.ends() == 0
