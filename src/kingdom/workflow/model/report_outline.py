"""The outline of a report that a Task produces."""

import msgspec


class ReportSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A heading of a report, and a description of what belongs under it."""

    title: str
    description: str = ""
