"""Check an embedded PostgreSQL server: its programs, its directory and its process."""

from kingdom.bootstrap import embedded_is_installed, inspect_embedded, is_embedded
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.errors import Misconfigured

_INSTALL = "pip install 'kingdom[postgres-embedded]'"
_ELSEWHERE = "fix what the message says, or name another store as database_url"


async def check_embedded_server(context: CheckContext) -> CheckResult:
    """Check whether an embedded server can run, and whether an earlier one was left running."""
    url = context.settings.database_url
    if not is_embedded(url):
        return skipped("the store is not an embedded server")
    if not embedded_is_installed():
        return fail("the programs of an embedded PostgreSQL are not installed", _INSTALL)
    try:
        server = await run_in_thread(lambda: inspect_embedded(url))
    except Misconfigured as error:
        return fail(str(error), _ELSEWHERE)
    summary = f"PostgreSQL {server.version}{f' under the account {server.account}' if server.account else ''}"
    if server.pid and not server.has_keeper:
        found = f"{summary}: process {server.pid} was left running; any command that uses the store stops it"
        return warn(found, "kingdom status")
    if server.pid:
        return ok(f"{summary}, process {server.pid}; it stops when no process uses it")
    return ok(
        f"{summary}, {'which runs while it is in use' if server.is_created else 'created when it is first opened'}"
    )
