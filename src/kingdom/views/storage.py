"""The results of moving a store."""

import msgspec

from kingdom.storage.transfer import ItemCounts


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """The counts of what was exported, and the kind of the store."""

    file: str
    source: str
    exported: ItemCounts


class ImportResult(ExportResult, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """The counts of what was in a file and of what was imported, and the kinds of both stores."""

    target: str
    imported: ItemCounts
