"""Check the settings of the web interface."""

from kingdom.doctor.check import CheckResult, fail, ok, skipped, warn
from kingdom.doctor.context import CheckContext

_SECRET_LENGTH_MIN = 16


async def check_web(context: CheckContext) -> CheckResult:
    """Check whether the web interface exposes sessions, or trusts names that anyone can claim."""
    settings = context.realm.web_settings
    if settings is None:
        return skipped("web is off in kingdom.yaml")
    if reason := settings.why_unsafe():
        found, _, fix = reason.partition(": ")
        return fail(found, fix or "set web.url in kingdom.yaml")
    if not settings.listen.is_local and not settings.is_https:
        found = f"{settings.address} is open to other machines without https, so others can read sessions"
        return warn(found, "put a proxy with https in front, and set web.url to its address")
    proxy = settings.proxy
    if proxy and proxy.secret and len(proxy.secret) < _SECRET_LENGTH_MIN:
        found = f"web.proxy.secret has only {len(proxy.secret)} characters, so it can be guessed"
        return warn(found, "choose one with `openssl rand -hex 32`")
    if proxy and not proxy.people:
        return warn("web.proxy gives no person a right", "list names and rights under web.proxy.people")
    return ok(f"{settings.url or settings.address}")
