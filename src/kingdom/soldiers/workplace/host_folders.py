"""The folders of a host: one per run, and the clones of repositories."""

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

from kingdom.soldiers.files.removal import remove_tree
from kingdom.soldiers.workplace.run_ports import RunPorts

_PEOPLE = "people"


class HostFolders:
    """The paths below the directory of one host.

    repositories/{git}-{digest}.git        a bare clone per repository and address
    runs/{workflow}/trees/{tree}           the checkouts of a run
    workspace/{general}/{work space}       where an agent runs: links to checkouts and reports, and its instructions
    runs/{workflow}/reports/               every version of every report
    logs/sessions/{soldier}.json, .err     the transcript and the standard error of an agent
    logs/sessions/{workflow}.egress.jsonl  hosts that the programs of a run requested
    copying/{soldier}                      the run of a session whose transcript is being copied to the store

    `results` is where people find the soldiers and sessions of an assignment, by default state/results.
    """

    def __init__(self, directory: Path, results: Path | None = None) -> None:
        self.directory = directory.resolve()
        self.results = results or self.directory / "state" / "results"
        self.repositories = self.directory / "repositories"
        self.runs = self.directory / "runs"
        self.ports = RunPorts(self.runs)
        self.work_spaces = self.directory / "workspace"
        self.sessions = self.directory / "logs" / "sessions"
        self.copying = self.directory / "copying"
        self.lock = self.directory / "host.lock"

    def create(self) -> None:
        """Create the folders that every host has."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Code, homes, sockets and transcripts are private.
        for folder in (self.repositories, self.runs, self.work_spaces, self.sessions):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)

    def instance(self) -> str:
        """Return the id that distinguishes this host from others with the same name; it is created once."""
        file = self.directory / "host.id"
        if not file.exists():
            file.write_text(secrets.token_hex(8))
        return file.read_text()

    def run(self, workflow_id: str) -> Path:
        """Return the folder of a run."""
        return self.runs / workflow_id

    async def remove_run(self, workflow_id: str) -> None:
        """Remove all folders of a run, unless it still has checkouts on this host. The store keeps its reports."""
        run = self.run(workflow_id)
        with suppress(OSError):
            if any((run / "trees").glob("*")):
                return
            for space in self._work_spaces_of(workflow_id):
                space.chmod(0o700)
                space.rename(run / space.name)
            # Rename the folder first, so that a new start of the run finds no half-removed folder. If the removal does
            # not finish, the periodic cleanup removes the renamed folder later, because it belongs to no run.
            aside = run.rename(run.with_name(f"{workflow_id.partition('.')[0]}.{secrets.token_hex(4)}"))
            await asyncio.to_thread(remove_tree, aside)

    def folders_of_run(self, workflow_id: str) -> list[Path]:
        """Return all folders of a run: its own, and its WorkSpaces."""
        return [self.run(workflow_id), *self._work_spaces_of(workflow_id)]

    def checkout(self, workflow_id: str, tree_id: str) -> Path:
        """Return the folder of a checkout."""
        return self.run(workflow_id) / "trees" / tree_id

    def work_space(self, general: str, work_space_id: str) -> Path:
        """Return the folder of a WorkSpace, below its General or below `people` for a run that a person started."""
        return self.work_spaces / (general or _PEOPLE) / work_space_id

    def home(self, workflow_id: str) -> Path:
        """Return the HOME of the agents of a run."""
        return self.run(workflow_id) / "home"

    def report(self, workflow_id: str, file_path: str) -> Path:
        """Return the file of a report; its path is relative to the folder of its run."""
        return self.run(workflow_id) / file_path

    def transcript(self, soldier_id: str) -> Path:
        """Return the transcript of a session."""
        return self.sessions / f"{soldier_id}.json"

    def errors(self, soldier_id: str) -> Path:
        """Return the file with the standard error of a session."""
        return self.sessions / f"{soldier_id}.err"

    def egress_log(self, workflow_id: str) -> Path:
        """Return the log of hosts that a run's programs requested; it outlives the folder of the run."""
        return self.sessions / f"{workflow_id}.egress.jsonl"

    def _work_spaces_of(self, workflow_id: str) -> list[Path]:
        return list(self.work_spaces.glob(f"*/{workflow_id}-w*-space*"))
