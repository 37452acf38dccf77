"""An Envoy that is killed before or after its first post: `python -m … BACKEND PLACE SLACK before|after`."""

import asyncio
import os
import signal
import sys

from kingdom.bus import CallResult, Dispatcher, Worker
from kingdom.court.envoy.background import BackgroundTasks
from kingdom.court.envoy.envoy import register
from kingdom.court.envoy.messenger import OutgoingMessage
from kingdom.court.envoy.sending import SendMessage
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.court.streams import MESSAGE_STREAM
from tests.contract.backends import BACKENDS
from tests.integration.court.envoy.scene import DEV, KINDS, POLL, TOPOLOGY, slack_settings


class DyingSlack(SlackMessenger):
    """Slack for a process that is killed around its first post."""

    moment = "before"

    async def post(self, post: OutgoingMessage) -> CallResult:
        if self.moment == "after":
            await super().post(post)
        os.kill(os.getpid(), signal.SIGKILL)
        return await super().post(post)


async def main(name: str, where: str, url: str, moment: str) -> None:
    place = DyingSlack(slack_settings(url))
    place.moment = moment
    await place.open()
    async with BACKENDS[name](where).open(TOPOLOGY, KINDS) as bus:
        dispatcher = Dispatcher()
        register(dispatcher, SendMessage(bus, place, BackgroundTasks(), DEV))
        await Worker(bus, dispatcher, [MESSAGE_STREAM.name], poll=POLL).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
