"""The backend that needs no server: every event, lease and record is a plain file."""

from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.moving import FilesTransfer
from kingdom.backends.files.operations import FilesOperations
from kingdom.backends.files.trial_store import FilesTrialStore

__all__ = ["FilesBus", "FilesOperations", "FilesTransfer", "FilesTrialStore"]
