"""The backend that needs no server: every event, lease and record is a plain file."""

from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.moving import FilesMovable
from kingdom.backends.files.operations import FilesOperations
from kingdom.backends.files.throwaway import FilesThrowaway

__all__ = ["FilesBus", "FilesMovable", "FilesOperations", "FilesThrowaway"]
