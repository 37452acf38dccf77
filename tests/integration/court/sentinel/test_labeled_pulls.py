"""A label of a pull request becomes one event, if GitHub confirms that a writer set it, and never for a fork."""

import asyncio
from datetime import datetime
from typing import Any

import aiohttp
import pytest

from kingdom.clock import utc_now
from kingdom.court.documents import ExternalEvent
from kingdom.court.sentinel.labeled_pulls import poll_labels
from kingdom.court.sentinel.pull_api import PullApi
from kingdom.court.sentinel.receiver import PATH
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.sentinel.settings import SentinelSettings
from tests.contract.scene import eventually
from tests.integration.court.sentinel.scene import Watch, github_settings
from tests.integration.standins.github import REPOSITORY, SECRET, TOKEN, Site
from tests.patience import PATIENCE_SECONDS

LABEL = "fix-checks"


async def user_token(_repo: str, *, with_members: bool) -> str:  # noqa: ARG001 - the same for every look
    return TOKEN


class LabelLook:
    """Looks of a Sentinel for labels."""

    def __init__(self, watch: Watch, site: Site, session: aiohttp.ClientSession) -> None:
        self.watch = watch
        self.site = site
        self.session = session

    async def __call__(self, now: datetime | None = None) -> list[ExternalEvent]:
        """Look, and return all events so far."""
        settings, at = github_settings(self.site.url), now or utc_now()
        repos = [REPOSITORY]
        await poll_labels(self.watch.bus, self.session, settings, user_token, repos, lambda: at)
        return await self.watch.events()


@pytest.fixture
async def look(watch: Watch, site: Site, session: aiohttp.ClientSession) -> LabelLook:
    """Looks at a repository with a pull request, a writer and a reader. The first look has happened."""
    await site.pull_request("feature")
    await site.happen("permission", login="anna", permission="write")
    await site.happen("permission", login="rita", permission="triage")
    look = LabelLook(watch, site, session)
    assert await look() == []
    return look


async def label(site: Site, **more: Any) -> None:
    await site.happen("label", **{"number": 1, "label": LABEL, "by": "anna", **more})


async def test_a_label_becomes_one_event_with_the_failed_checks_of_the_head(site: Site, look: LabelLook) -> None:
    await site.happen("check", number=1, name="unit", conclusion="failure", log="No fin.")
    await site.happen("check", number=1, name="lint", conclusion="success")
    await label(site)
    [event] = await look()
    head = (await site.read(f"/repos/{REPOSITORY}/pulls/1"))["head"]["sha"]
    assert (event.type, event.repo) == ("github.pr.labeled", REPOSITORY)
    about = {name: value for name, value in event.payload.items() if name not in ("failing", "title")}
    assert about == {
        "number": 1,
        "label": LABEL,
        "actor": "anna",
        "branch": "feature",
        "base": "main",
        "commit": head,
    }
    [failed] = event.payload["failing"]
    assert (failed["name"], failed["log"].strip()) == ("unit", "No fin.")
    assert await look() == [event]


@pytest.mark.parametrize("by", ["rita", "mallory", "kingdom-bot"])
async def test_a_label_of_a_person_who_cannot_write_is_ignored(site: Site, look: LabelLook, by: str) -> None:
    await label(site, by=by)
    assert await look() == []


async def test_a_label_on_a_branch_of_a_fork_is_ignored(site: Site, look: LabelLook) -> None:
    await site.pull_request("mallory:feature")
    await label(site, number=2)
    assert await look() == []


@pytest.mark.parametrize("what", ["close", "unlabel"])
async def test_a_label_that_is_gone_or_on_a_closed_pull_request_is_ignored(
    site: Site, look: LabelLook, what: str
) -> None:
    await label(site)
    await site.happen(what, number=1, **({"label": LABEL} if what == "unlabel" else {}))
    assert await look() == []


async def test_a_label_of_an_issue_is_no_event_and_a_label_that_is_set_again_is_another(
    site: Site, look: LabelLook
) -> None:
    await site.happen("issue", title="It wobbles")
    await label(site, number=2)
    assert await look() == []
    for _ in range(2):
        await label(site)
        await look()
        await site.happen("unlabel", number=1, label=LABEL)
    assert len(await look()) == 2


async def test_a_label_behind_a_page_of_other_events_is_read(site: Site, look: LabelLook) -> None:
    await label(site)
    for _ in range(60):
        await label(site, label="noise", by="rita")
        await site.happen("unlabel", number=1, label="noise")
    assert [event.payload["label"] for event in await look()] == [LABEL]


async def test_a_label_that_cannot_be_read_does_not_block_a_later_one(
    site: Site, look: LabelLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = PullApi.pull

    async def pull(api: PullApi) -> Any:
        return {} if api._pull.endswith("/1") else await read(api)

    monkeypatch.setattr(PullApi, "pull", pull)
    await site.pull_request("other")
    await label(site)
    await label(site, number=2)
    assert [event.payload["number"] for event in await look()] == [2]


async def test_a_webhook_about_a_label_makes_the_look_happen_now(site: Site, look: LabelLook) -> None:
    settings = SentinelSettings(github=github_settings(site.url))
    sentinel = Sentinel(look.watch.bus, settings, tokens=user_token, label_repos=lambda: {REPOSITORY})
    running = asyncio.create_task(sentinel.run())
    receiver = sentinel.receiver
    assert receiver

    async def receives() -> bool:
        return bool(receiver.url)

    try:
        await eventually(receives, "webhooks can be received")
        await site.people("hook", url=receiver.url + PATH, secret=SECRET)
        await label(site)
        events = await eventually(look.watch.events, "the label is an event")
        assert [event.type for event in events] == ["github.pr.labeled"]
    finally:
        sentinel.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
