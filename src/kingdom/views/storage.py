"""The results of moving a store."""

import msgspec

from kingdom.storage.transfer import ItemCounts


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """The numbers of exported items, and the kind of the store."""

    file: str
    source: str
    exported: ItemCounts


class ImportResult(ExportResult, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """The numbers of exported and of imported items, and the kinds of both stores."""

    target: str
    imported: ItemCounts
