"""A scripted trial for each broken variant: the variant breaks its rule in it, and the unchanged pipeline does not."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.servers import PATIENCE_SECONDS
from bench.trading.judge import Finding, Rule, judge
from bench.trading.process import signal
from bench.trading.scene import AS_IT_IS, EXCHANGE, FEEDER, PUSH, Scene, until
from examples.trading.orders import create_attempt
from examples.trading.signals import record_signal
from examples.trading.store import TradeStore, open_store
from examples.trading.streams import Origin

_WORKER = "worker"
_MARKET = signal(0).market
_ORIGIN = Origin(owner_id="OWNER", market=_MARKET)
# More lookups than fit into the time after which a market is suspended.
_LOOKUPS = 4
_LOOK_EVERY_SECONDS = 0.2


async def _lost_answer(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, script=["book_and_drop"])
    await record_signal(store, signal(0))


async def _dead_sender(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, script=["time_out"])
    await record_signal(store, signal(0))
    await _until(scene, lambda evidence: any(line["what"] == "order" for line in evidence.book))
    scene.kill(_WORKER)
    scene.start(_WORKER)


async def _late_booking(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, script=["book_late"])
    await record_signal(store, signal(0))
    await _until(scene, lambda evidence: any(line["what"] == "late" for line in evidence.book))


async def _late_booking_and_throttle(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, script=["book_late", "throttle"])
    await record_signal(store, signal(0))
    await _until(scene, lambda evidence: any(line["what"] == "late" for line in evidence.book))


async def _throttle(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, script=["throttle", "ban"])
    await record_signal(store, signal(0))


async def _repeated_command(scene: Scene, store: TradeStore) -> None:
    intent = await record_signal(store, signal(0))
    assert intent is not None
    await _until(scene, lambda evidence: evidence.is_quiet)
    await store.bus.publish(create_attempt(_ORIGIN, intent, 1))


async def _dead_feeder(scene: Scene, _store: TradeStore) -> None:
    while True:
        scene.feed(2, 10.0)
        await until(lambda: scene.exit_code(FEEDER) is not None)
        if scene.exit_code(FEEDER) == 0:
            return


async def _no_lookups(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, blind_markets=[_MARKET])
    await record_signal(store, signal(0))
    await _until(scene, lambda e: sum(line["what"] == "lookup_failed" for line in e.book) >= _LOOKUPS)


async def _suspended_market(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(EXCHANGE, blind_markets=[_MARKET])
    await record_signal(store, signal(0))
    await _until(scene, lambda evidence: _MARKET in evidence.stopped_markets)
    await record_signal(store, signal(4))
    await _until(scene, lambda evidence: len(evidence.attempts) == 2 and not evidence.open_events)
    await scene.set_faults(EXCHANGE)


async def _kill_switch(scene: Scene, store: TradeStore) -> None:
    for is_on in (True, False):
        payload = {"market": _MARKET, "on": is_on}
        await store.bus.publish(_ORIGIN.envelope("SetKillSwitch", "Market", _MARKET, payload))
        await _until(scene, lambda e, on=is_on: (_MARKET in e.stopped_markets) == on and not e.open_events)
        if is_on:
            await record_signal(store, signal(0))
            await _until(scene, lambda evidence: len(evidence.attempts) == 1 and not evidence.open_events)


async def _lost_push_answer(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(PUSH, script=["record_and_drop"])
    await record_signal(store, signal(0))


async def _lost_push(scene: Scene, store: TradeStore) -> None:
    await scene.set_faults(PUSH, script=["drop"])
    await record_signal(store, signal(0))


async def _until(scene: Scene, condition: Callable[..., bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition(await scene.evidence()):  # noqa: ASYNC110 - other processes do not tell
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


class Scenario(NamedTuple):
    """A scripted trial, and the rule that the variant breaks in it. `timing` has arguments for the Scene."""

    variant: str
    act: Callable[[Scene, TradeStore], Awaitable[None]]
    breaks: Rule
    timing: dict[str, float] = {}  # noqa: RUF012 - never changed

    @property
    def name(self) -> str:
        """Return a name for people."""
        return f"{self.variant}{self.act.__name__}".replace("__", "_")

    async def run(self, url: str, *, broken: bool) -> list[Finding]:
        """Run the scenario on a database with the tables of the bus, until it is quiet or the rule is broken."""
        with tempfile.TemporaryDirectory() as directory:
            variant = self.variant if broken else AS_IT_IS
            scene = Scene(url, Path(directory), variant=variant, **self.timing)  # type: ignore[arg-type]  # the seed is not here
            try:
                await scene.open({_WORKER: ()})
                async with open_store(scene.settings) as store:
                    await self.act(scene, store)
                return await self._watch(scene)
            finally:
                scene.close()

    async def _watch(self, scene: Scene) -> list[Finding]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                evidence = await scene.evidence()
                findings = judge(evidence, at_rest=evidence.is_quiet or self.act is _no_lookups)
                if evidence.is_quiet or any(finding.rule is self.breaks for finding in findings):
                    return findings
                await asyncio.sleep(_LOOK_EVERY_SECONDS)


# A late booking that comes after the lookups, and an answer that comes after the death of the sender.
_LATE: dict[str, Any] = {"late_seconds": 8.0}
# The command is taken over before the limit of SENT, however slow the machine is.
_SLOW: dict[str, Any] = {"late_seconds": 60.0, "answer_seconds": 60.0, "sent_limit_seconds": 600.0}
SCENARIOS = (
    Scenario("retry_unknown", _lost_answer, Rule.ORDER_TWICE),
    Scenario("resend_without_lookup", _lost_answer, Rule.RESENT_WITHOUT_LOOKUP),
    Scenario("resend_after_crash", _dead_sender, Rule.RESENT_WITHOUT_LOOKUP, _SLOW),
    Scenario("new_identifier_after_lookup", _late_booking, Rule.ORDER_TWICE, _LATE),
    Scenario("new_identifier_after_resend", _late_booking_and_throttle, Rule.ORDER_TWICE, _LATE),
    Scenario("throttled_ends", _throttle, Rule.THROTTLED_WITHOUT_SUCCESSOR),
    Scenario("throttled_keeps_identifier", _throttle, Rule.RESENT_WITHOUT_LOOKUP),
    Scenario("ignore_state", _repeated_command, Rule.RESENT_WITHOUT_LOOKUP),
    Scenario("publish_after_commit", _dead_feeder, Rule.NOT_CONTINUED),
    Scenario("never_suspend", _no_lookups, Rule.UNKNOWN_NOT_SUSPENDED),
    Scenario("ignore_stops", _suspended_market, Rule.SENT_WHILE_STOPPED),
    Scenario("ignore_stops", _kill_switch, Rule.SENT_WHILE_STOPPED),
    Scenario("forget_prepared", _kill_switch, Rule.NOT_CONTINUED),
    Scenario("push_without_lookup", _lost_push_answer, Rule.PUSHED_TWICE),
    Scenario("log_push_before_sending", _lost_push, Rule.NOT_PUSHED),
    Scenario("fill_in_silence", _lost_answer, Rule.EVENTS_DIFFER),
)
