"""The setting of one run, and the files in which its processes leave their results."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kingdom.soldiers.settings import SoldierSettings

HOST_NAME = "host-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The setting of one run: its store, directory, time limit and broken variant.

    `soldiers` are the settings of its agents, and `ports` those of its servers.
    """

    url: str
    directory: Path
    seconds: float
    soldiers: SoldierSettings = field(default_factory=SoldierSettings)
    variant: str | None = None
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def host_directory(self) -> Path:
        """The directory of the host."""
        return self.directory / HOST_NAME

    @property
    def outcome(self) -> Path:
        """The file in which the client records the end of the run."""
        return self.directory / "outcome.json"

    def note(self, role: str) -> Path:
        """Return the file in which a victim records its last step."""
        return self.directory / f"{role}.last-step"

    def log(self, role: str) -> Path:
        """Return the output of a process."""
        return self.directory / f"{role}.log"

    def counts(self, role: str) -> Path:
        """Return the file in which a process records its number of steps when it ends normally."""
        return self.directory / f"{role}.steps"


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run, as its client saw it."""

    workflow_id: str
    status: str
    reason: str
    seconds: float
