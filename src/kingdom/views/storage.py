"""The results of moving a store."""

import msgspec

from kingdom.bus.moving import Census


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """The counts of what was exported, and the kind of the store."""

    file: str
    source: str
    exported: Census


class ImportResult(ExportResult, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """The counts of what was in a file and of what was imported, and the kinds of both stores."""

    target: str
    imported: Census
