"""Where webhooks arrive and where ours go: whether the port is ours, and whether somebody listens."""

import asyncio
import errno
import hashlib
import hmac
import secrets
import socket
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import psutil

from kingdom.court.sentinel.receiver import PATH
from kingdom.court.sentinel.settings import GitHubWebhookSettings
from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped
from kingdom.doctor.patient import Patient
from kingdom.doctor.store import signs_of_life

_ANSWER_SECONDS = 5.0
_NOT_NAMED = "kingdom.yaml does not name them"
_BODY = b'{"zen": "Is anybody there?"}'
_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - what people may have set
_OK, _NOT_SIGNED = 200, 401
_PORTS = {"http": 80, "https": 443}


class _Answer(NamedTuple):
    """Who answered to a ping: nobody, the Sentinel, or a program that is none of ours."""

    is_there: bool
    is_sentinel: bool = False
    takes_it: bool = False


async def port(patient: Patient) -> Verdict:
    """Look whether the Sentinel can listen for webhooks, or does."""
    if (webhook := _settings(patient)) is None:
        return skipped(_NOT_NAMED)
    place = f"{webhook.host or '*'}:{webhook.port}"
    if not webhook.secrets:
        return fail("webhooks have no secret", "name one as sentinel.github.webhook.secrets, or leave webhook out")
    if not webhook.port:
        return ok("any free one is taken")
    if (await _asked(patient, webhook)).is_sentinel:
        return ok(f"the Sentinel listens on {place}")
    number = await in_thread(lambda: _bind(webhook.host, webhook.port))
    another = "set sentinel.github.webhook.port to another"
    match number:
        case 0:
            return ok(f"{place} is free")
        case errno.EADDRINUSE:
            holder = await in_thread(lambda: _listener(webhook.port))
            return fail(f"{place} is taken by {holder}", f"end that program, or {another}")
        case errno.EACCES:
            return fail(f"{place} is only for root", f"{another}, above 1023")
        case errno.EADDRNOTAVAIL:
            return fail(f"this machine has no address {webhook.host}", "set sentinel.github.webhook.host to 127.0.0.1")
    return fail(f"nobody can listen on {place}: {errno.errorcode.get(number, number)}", another)


async def reachable(patient: Patient) -> Verdict:
    """Send the Sentinel a signed ping, as GitHub does when a webhook is made."""
    if (webhook := _settings(patient)) is None:
        return skipped(_NOT_NAMED)
    if not webhook.port or not webhook.secrets:
        return skipped("nobody but the Sentinel knows its port" if webhook.secrets else "webhooks have no secret")
    answer = await _asked(patient, webhook)
    if answer.takes_it:
        return ok("the Sentinel takes a signed ping")
    again = "kingdom role sentinel, started anew: it reads its settings only then"
    if answer.is_sentinel:
        return fail("the Sentinel does not take our signature: it runs with other secrets", again)
    if answer.is_there:
        return skipped("another program has the port")
    if "sentinel" in (await signs_of_life(patient) or {}):
        return fail("the Sentinel gives signs of life, and does not listen for webhooks", again)
    return skipped("the Sentinel does not run")


async def envoy_webhook(patient: Patient) -> Verdict:
    """Look whether somebody listens where the Envoy tells people; nothing is said."""
    settings = patient.realm.envoy.webhook
    if settings is None:
        return skipped(_NOT_NAMED)
    url = urlsplit(settings.url)
    place = f"{url.hostname}:{url.port or _PORTS[url.scheme]}"
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(url.hostname, url.port or _PORTS[url.scheme])
    except (OSError, TimeoutError) as error:
        found = f"nobody listens at {place}: {str(error) or type(error).__name__}"
        return fail(found, "start what listens there, or correct envoy.webhook.url")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ok(f"somebody listens at {place}")


def _settings(patient: Patient) -> GitHubWebhookSettings | None:
    github = patient.realm.sentinel.github
    return github.webhook if github else None


async def _asked(patient: Patient, webhook: GitHubWebhookSettings) -> _Answer:
    return await patient.once("ping", lambda: _ping(webhook))


async def _ping(webhook: GitHubWebhookSettings) -> _Answer:
    host = _THIS_MACHINE.get(webhook.host, webhook.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{webhook.port}{PATH}"
    signature = hmac.new(webhook.secrets[0].encode(), _BODY, hashlib.sha256).hexdigest()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "ping",
        "X-GitHub-Delivery": f"kingdom-doctor-{secrets.token_hex(8)}",
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    limit = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(url, data=_BODY, headers=headers, allow_redirects=False) as answer,
        ):
            words = (await answer.content.read(100)).decode(errors="replace").strip()
            takes_it = (answer.status, words) == (_OK, "pong")
            refuses_it = (answer.status, words) == (_NOT_SIGNED, "not signed")
            return _Answer(is_there=True, is_sentinel=takes_it or refuses_it, takes_it=takes_it)
    except aiohttp.ClientConnectorError:
        return _Answer(is_there=False)
    except (aiohttp.ClientError, TimeoutError):
        return _Answer(is_there=True)


def _bind(host: str, port_number: int) -> int:
    """Listen on an address for a moment; returns the number of the error, 0 if there was none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port_number))
            listener.listen(1)
        except socket.gaierror:
            # A name that nobody knows; its number is none of an operating system.
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno or errno.EADDRNOTAVAIL
    return 0


def _listener(port_number: int) -> str:
    """Return who listens on a port, as far as we may know."""
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port_number and each.pid:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return "another program"
