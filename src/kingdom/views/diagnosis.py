"""The findings of `kingdom doctor`."""

import msgspec

from kingdom.doctor.check import CheckReport


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of all checks; `ok` is false if something does not work."""

    ok: bool
    checks: list[CheckReport]
