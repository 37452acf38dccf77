"""The results of `kingdom general` commands."""

import msgspec

from kingdom.court.package_files import BrokenPackage
from kingdom.workflow.model.resources.template import WorkflowTemplate


class ListedGeneral(msgspec.Struct, frozen=True, kw_only=True):
    """A General: its event types, its schedules and its works."""

    name: str
    description: str
    subscribes: list[str]
    schedules: list[str]
    works: list[str]
    directory: str


class ListedGenerals(msgspec.Struct, frozen=True, kw_only=True):
    """The Generals in a directory, and the broken ones."""

    directory: str
    generals: list[ListedGeneral]
    broken: tuple[BrokenPackage, ...]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow that an event would start, and the values that the event lacks."""

    template: WorkflowTemplate
    missing: list[str]
