"""An embedded server: its programs, its directory, and whether somebody looks after it."""

from kingdom.bootstrap import embedded_is_installed, inspect_embedded, is_embedded
from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped, warn
from kingdom.doctor.patient import Patient
from kingdom.errors import Misconfigured

_INSTALL = "pip install 'kingdom[postgres-embedded]'"
_ELSEWHERE = "do what it says, or name another store as database_url"


async def embedded_server(patient: Patient) -> Verdict:
    """Look whether an embedded server can run, and whether one was left behind."""
    url = patient.settings.database_url
    if not is_embedded(url):
        return skipped("the store is no embedded server")
    if not embedded_is_installed():
        return fail("the programs of an embedded PostgreSQL are not installed", _INSTALL)
    try:
        look = await in_thread(lambda: inspect_embedded(url))
    except Misconfigured as error:
        return fail(str(error), _ELSEWHERE)
    words = f"PostgreSQL {look.version}{f' under the account {look.account}' if look.account else ''}"
    if look.pid and not look.has_keeper:
        return warn(f"{words}: process {look.pid} was left behind, and nobody would stop it", "kingdom status")
    if look.pid:
        return ok(f"{words}, process {look.pid}; it ends when nobody uses it")
    return ok(f"{words}, {'which runs while somebody uses it' if look.is_made else 'made by whoever opens it first'}")
