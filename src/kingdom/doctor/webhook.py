"""Check the port on which the Sentinel receives webhooks, and the address to which the Envoy sends webhooks."""

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
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped
from kingdom.doctor.context import CheckContext
from kingdom.doctor.store import read_heartbeats
from kingdom.errors import describe_error

_RESPONSE_SECONDS = 5.0
_NOT_CONFIGURED = "not configured in kingdom.yaml"
_BODY = b'{"zen": "Is anybody there?"}'
_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - a configured value
_OK, _UNAUTHORIZED = 200, 401
_PORTS = {"http": 80, "https": 443}


class _PingResult(NamedTuple):
    """Whether a program listens on the port, whether it is the Sentinel, and whether it accepts the signature."""

    is_listening: bool
    is_sentinel: bool = False
    is_accepted: bool = False


async def check_port(context: CheckContext) -> CheckResult:
    """Check whether the Sentinel listens for webhooks, or whether its port is free."""
    if (webhook := _settings(context)) is None:
        return skipped(_NOT_CONFIGURED)
    place = f"{webhook.host or '*'}:{webhook.port}"
    if not webhook.secrets:
        return fail("webhooks have no secret", "name one as sentinel.github.webhook.secrets, or leave webhook out")
    if not webhook.port:
        return ok("the Sentinel takes any free port")
    if (await _ping_once(context, webhook)).is_sentinel:
        return ok(f"the Sentinel listens on {place}")
    number = await run_in_thread(lambda: _try_binding(webhook.host, webhook.port))
    another = "set sentinel.github.webhook.port to another port"
    match number:
        case 0:
            return ok(f"{place} is free")
        case errno.EADDRINUSE:
            holder = await run_in_thread(lambda: _find_listener(webhook.port))
            return fail(f"{place} is in use by {holder}", f"end that program, or {another}")
        case errno.EACCES:
            return fail(f"only root may listen on {place}", f"{another}, above 1023")
        case errno.EADDRNOTAVAIL:
            return fail(f"this machine has no address {webhook.host}", "set sentinel.github.webhook.host to 127.0.0.1")
    return fail(f"listening on {place} fails: {errno.errorcode.get(number, number)}", another)


async def check_delivery(context: CheckContext) -> CheckResult:
    """Send the Sentinel a signed ping, as GitHub does for a new webhook."""
    if (webhook := _settings(context)) is None:
        return skipped(_NOT_CONFIGURED)
    if not webhook.port or not webhook.secrets:
        return skipped("only the Sentinel knows its port" if webhook.secrets else "webhooks have no secret")
    ping = await _ping_once(context, webhook)
    if ping.is_accepted:
        return ok("the Sentinel accepts a signed ping")
    restart = "restart `kingdom role sentinel`: it reads its settings only at the start"
    if ping.is_sentinel:
        return fail("the Sentinel rejects the signature: it runs with other secrets", restart)
    if ping.is_listening:
        return skipped("another program has the port")
    if "sentinel" in (await read_heartbeats(context) or {}):
        return fail("the Sentinel sends heartbeats, but does not listen for webhooks", restart)
    return skipped("the Sentinel does not run")


async def check_envoy_webhook(context: CheckContext) -> CheckResult:
    """Check whether a server listens at the webhook of the Envoy, without sending a message."""
    settings = context.realm.envoy.webhook
    if settings is None:
        return skipped(_NOT_CONFIGURED)
    url = urlsplit(settings.url)
    place = f"{url.hostname}:{url.port or _PORTS[url.scheme]}"
    try:
        async with asyncio.timeout(_RESPONSE_SECONDS):
            _, writer = await asyncio.open_connection(url.hostname, url.port or _PORTS[url.scheme])
    except (OSError, TimeoutError) as error:
        found = f"no server listens at {place}: {describe_error(error)}"
        return fail(found, "start that server, or correct envoy.webhook.url")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ok(f"a server listens at {place}")


def _settings(context: CheckContext) -> GitHubWebhookSettings | None:
    github = context.realm.sentinel.github
    return github.webhook if github else None


async def _ping_once(context: CheckContext, webhook: GitHubWebhookSettings) -> _PingResult:
    return await context.compute_once("ping", lambda: _ping(webhook))


async def _ping(webhook: GitHubWebhookSettings) -> _PingResult:
    host = _THIS_MACHINE.get(webhook.host, webhook.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{webhook.port}{PATH}"
    signature = hmac.new(webhook.secrets[0].encode(), _BODY, hashlib.sha256).hexdigest()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "ping",
        "X-GitHub-Delivery": f"kingdom-doctor-{secrets.token_hex(8)}",
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    limit = aiohttp.ClientTimeout(total=_RESPONSE_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(url, data=_BODY, headers=headers, allow_redirects=False) as response,
        ):
            text = (await response.content.read(100)).decode(errors="replace").strip()
            is_accepted = (response.status, text) == (_OK, "pong")
            is_rejected = (response.status, text) == (_UNAUTHORIZED, "not signed")
            return _PingResult(is_listening=True, is_sentinel=is_accepted or is_rejected, is_accepted=is_accepted)
    except aiohttp.ClientConnectorError:
        return _PingResult(is_listening=False)
    except (aiohttp.ClientError, TimeoutError):
        return _PingResult(is_listening=True)


def _try_binding(host: str, port_number: int) -> int:
    """Listen on an address for a moment; return the errno, or 0 on success."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port_number))
            listener.listen(1)
        except socket.gaierror:
            # The host name is unknown; a gaierror has no errno of the operating system.
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno or errno.EADDRNOTAVAIL
    return 0


def _find_listener(port_number: int) -> str:
    """Return the process that listens on a port, if the user may see it."""
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port_number and each.pid:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return "another program"
