"""Check whether the brokers of streams on Kafka answer."""

from kingdom.bootstrap import count_brokers
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.errors import Misconfigured, Unavailable

_SAFE_BROKERS = 3


async def check_kafka(context: CheckContext) -> CheckResult:
    """Check whether the brokers answer, and whether there are enough of them."""
    settings = context.settings
    if settings.kafka_servers is None:
        return skipped("KINGDOM_KAFKA_SERVERS is not set")
    try:
        count = await run_in_thread(lambda: count_brokers(settings))
    except Unavailable as error:
        return fail(str(error), "check KINGDOM_KAFKA_SERVERS and KINGDOM_KAFKA_OPTIONS, and start the brokers")
    except Misconfigured as error:
        return fail(str(error), "correct KINGDOM_KAFKA_OPTIONS, or install the extra kafka")
    if count < _SAFE_BROKERS:
        return warn(f"only {count} broker(s) answer, so the loss of one may lose events", "run three brokers")
    return ok(f"{count} brokers answer")
