"""The backend with nothing installed: every event, lease and record is a file that `cat` shows."""

from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.moving import FilesTransfer
from kingdom.backends.files.operations import FilesOperations
from kingdom.backends.files.trial_store import FilesTrialStore

__all__ = ["FilesBus", "FilesOperations", "FilesTransfer", "FilesTrialStore"]
