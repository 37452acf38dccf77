"""Read a followed pull request from GitHub. Conditional requests save rate limit: "not modified" does not count."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from kingdom.court.remote_http import HttpReply, github_headers, next_page, requested_pause
from kingdom.court.sentinel.http_requests import send_request
from kingdom.court.sentinel.pull_events import LOG_BYTES_MAX, CheckDetails, CheckRun, PullComment, clean_log
from kingdom.court.sentinel.tests_in_log import count_tests
from kingdom.court.sentinel.untrusted import NAME_MAX, TITLE_MAX, clean_text, convert_untrusted
from kingdom.errors import Transient

_PAGE = {"per_page": "100"}
_PAGES_MAX = 20
_ANNOTATIONS = {"per_page": "10"}
_LOG_READ_MAX = 4 << 20
_GONE = (403, 404, 410, 451)
_LIMITED = (403, 429)
_REDIRECT, _NOT_FOUND = 302, 404
_T = TypeVar("_T", bound=msgspec.Struct)


class PullApi:
    """The requests about one pull request, or about its repository. `etags` are from earlier replies, by request."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str,
        repo: str,
        number: int = 0,
        etags: Mapping[str, str] | None = None,
    ) -> None:
        self._session = session
        self._headers = github_headers(token)
        self._root = url.rstrip("/")
        self._repository = f"{self._root}/repos/{repo}"
        self._pull = f"{self._repository}/pulls/{number}"
        self.etags = dict(etags or {})

    async def pull(self) -> Any:
        """Return the pull request, or None if it has not changed."""
        return await self._changed("pull", self._pull)

    async def reviews(self) -> Any:
        """Return all reviews, or None if they have not changed."""
        return await self._changed("reviews", f"{self._pull}/reviews", field="")

    async def issue_events(self, newest: int | None) -> list[Any] | None:
        """Return the events of issues and pull requests of the repository, or None if there are no new ones.

        All events after the one with the id `newest` are returned, and some older ones. Without it, or if there are too
        many, only the latest ones are returned.
        """
        url, known = f"{self._repository}/issues/events", self.etags.get("events", "")
        reply = await self._ask(url, _PAGE, {"If-None-Match": known} if known else {})
        if reply.is_unchanged:
            return None
        self.etags["events"] = reply.headers.get("ETag", "")
        items: list[Any] = []
        for _ in range(_PAGES_MAX):
            page = reply.body if isinstance(reply.body, list) else []
            items += page
            following = next_page(reply, self._root)
            if newest is None or following is None or any(_id_of(each) <= newest for each in page):
                break
            reply = await self._ask(following)
        return items

    async def suites(self, commit: str) -> Any:
        """Return all suites of a commit, or None if they have not changed."""
        return await self._changed("suites", f"{self._repository}/commits/{commit}/check-suites", field="check_suites")

    async def statuses(self, commit: str) -> Any:
        """Return the newest status of each context of a commit, or None if they have not changed."""
        return await self._changed("status", f"{self._repository}/commits/{commit}/status", field="statuses")

    async def comments(self) -> list[PullComment]:
        """Return all comments on lines."""
        reply = await self._ask(f"{self._pull}/comments", _PAGE)
        return convert_all(await self._all_pages(reply, ""), PullComment)

    async def check_runs(self, commit: str) -> list[CheckRun]:
        """Return the newest run of each check of a commit."""
        reply = await self._ask(f"{self._repository}/commits/{commit}/check-runs", _PAGE)
        return convert_all(await self._all_pages(reply, "check_runs"), CheckRun)

    async def permission(self, login: str) -> str:
        """Return the permission of a person in the repository, such as `write`."""
        url = f"{self._repository}/collaborators/{quote(login, safe='')}/permission"
        reply = await send_request(self._session, "GET", url, headers=self._headers, gone_statuses=(_NOT_FOUND,))
        found = reply.body.get("permission") if reply and isinstance(reply.body, dict) else None
        return found if isinstance(found, str) else "none"

    async def is_member(self, team: str, login: str) -> bool:
        """Return whether a person is a member of a team, whose name is ORGANIZATION/TEAM."""
        organization, _, name = team.partition("/")
        url = f"{self._root}/orgs/{organization}/teams/{quote(name, safe='')}/memberships/{quote(login, safe='')}"
        reply = await send_request(self._session, "GET", url, headers=self._headers, gone_statuses=(_NOT_FOUND,))
        return reply is not None and isinstance(reply.body, dict) and reply.body.get("state") == "active"

    async def check_details(self, failed: Sequence[CheckRun]) -> dict[int, CheckDetails]:
        """Return the details of failed checks. Unreadable logs and missing annotations are left out."""
        bytes_max = LOG_BYTES_MAX // max(1, len(failed))
        found = {}
        for run in failed:
            log = await self._log(run) or ""
            annotations = await self._annotations(run)
            found[run.id] = CheckDetails(
                annotations=annotations, log=clean_log(log, bytes_max), tests=await asyncio.to_thread(count_tests, log)
            )
        return found

    async def counted_tests(self, run: CheckRun) -> CheckDetails:
        """Return only how many tests a check ran: 0 if its log no longer says it, None if there is no log for us."""
        log = await self._log(run)
        if log is None:
            raise Transient(f"GitHub did not send the log of the check {clean_text(run.name, NAME_MAX)}")
        return CheckDetails(tests=await asyncio.to_thread(count_tests, log) or 0 if log else None)

    async def _annotations(self, run: CheckRun) -> tuple[str, ...]:
        url = f"{self._repository}/check-runs/{run.id}/annotations"
        reply = await send_request(
            self._session, "GET", url, headers=self._headers, params=_ANNOTATIONS, gone_statuses=_GONE
        )
        found = [each for each in reply.body if isinstance(each, dict)] if reply and reply.body else []
        texts = (f"{each.get('path')}:{each.get('start_line')}: {each.get('message')}" for each in found)
        return tuple(clean_text(text, TITLE_MAX) for text in texts)

    async def _log(self, run: CheckRun) -> str | None:
        """Return the log of a check, "" if there is none for us, or None if it cannot be read now.

        The server that has it must not get our token.
        """
        if not run.has_log:
            return ""
        try:
            url = f"{self._repository}/actions/jobs/{run.id}/logs"
            async with self._session.get(url, headers=self._headers, allow_redirects=False) as found:
                if found.status in _LIMITED and (pause := requested_pause(found.headers)):
                    raise Transient("GitHub limits the rate of requests", after=pause)
                if found.status in _GONE:
                    return ""
                target = found.headers.get("Location", "") if found.status == _REDIRECT else ""
            if not target:
                return None
            async with self._session.get(target) as log:
                if log.status in _GONE:
                    return ""
                raw = bytearray()
                async for chunk in log.content.iter_chunked(1 << 16):
                    raw = (raw + chunk)[-_LOG_READ_MAX:]
                return raw.decode(errors="replace") if log.ok else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _changed(self, name: str, url: str, *, field: str | None = None) -> Any:
        """Return the document at a URL, or None if it has not changed.

        With `field`, return the items in this field of all pages. If `field` is "", each page is a list of items.
        """
        known = self.etags.get(name, "")
        reply = await self._ask(url, _PAGE if name != "pull" else None, {"If-None-Match": known} if known else {})
        if reply.is_unchanged:
            return None
        # A change on a later page does not change the tag of the first one.
        is_partial = field is not None and next_page(reply, self._root)
        self.etags[name] = "" if is_partial else reply.headers.get("ETag", "")
        return reply.body if field is None else await self._all_pages(reply, field)

    async def _all_pages(self, reply: HttpReply, field: str) -> list[Any]:
        items: list[Any] = []
        for _ in range(_PAGES_MAX):
            page = reply.body.get(field) if field and isinstance(reply.body, dict) else reply.body
            items += page if isinstance(page, list) else []
            following = next_page(reply, self._root)
            if following is None:
                return items
            reply = await self._ask(following)
        raise Transient(f"GitHub has more than {_PAGES_MAX} pages about a pull request")

    async def _ask(
        self, url: str, params: Mapping[str, str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> HttpReply:
        headers = {**self._headers, **(conditions or {})}
        reply = await send_request(self._session, "GET", url, headers=headers, params=params)
        if reply is None:
            raise Transient("GitHub did not answer")
        return reply


def _id_of(document: Any) -> int:
    found = document.get("id") if isinstance(document, dict) else None
    return found if isinstance(found, int) else sys.maxsize


def convert_all(documents: Sequence[Any], kind: type[_T]) -> list[_T]:
    """Convert documents of GitHub to a type, or raise MalformedEvent."""
    return [convert_untrusted(each, kind) for each in documents]
