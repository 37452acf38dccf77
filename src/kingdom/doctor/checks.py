"""Every check there is, in the order in which people read them."""

from kingdom.doctor import agents, embedded, files_store, machine, outside, settings_file, store, webhook
from kingdom.doctor.check import Check
from kingdom.doctor.database_checks import database_checks

_NETWORK = "check the address in kingdom.yaml and the way to it: proxy, firewall, DNS"
_DISK = "see whether the disk answers: dmesg | tail"


def every_check() -> list[Check]:
    """Return all checks."""
    return [*_machine(), *_settings(), *_store(), *database_checks(), *_outside()]


def _machine() -> list[Check]:
    return [
        Check(name="python", look=machine.python, remedy="install Python 3.11 or newer"),
        Check(name="git", look=machine.git, remedy="see what `git --version` waits for"),
        Check(name="bubblewrap", look=machine.bubblewrap, remedy="see what `bwrap --version` waits for"),
        Check(name="sandbox", look=machine.sandbox, remedy="kingdom config check"),
        Check(name="open-files", look=machine.open_files, remedy="ulimit -n 4096"),
        Check(name="inotify", look=machine.inotify, remedy="sudo sysctl fs.inotify.max_user_instances=1024"),
        Check(name="clock", look=machine.clock, remedy="sudo timedatectl set-ntp true"),
        Check(name="load", look=machine.load, remedy="see what keeps the machine busy: top"),
        Check(name="agent", look=agents.agent, remedy=agents.REMEDY),
    ]


def _settings() -> list[Check]:
    return [
        Check(name="environment", look=settings_file.environment, remedy="env | grep KINGDOM"),
        Check(name="kingdom.yaml", look=settings_file.file, remedy="kingdom config check"),
        Check(name="secrets", look=settings_file.secrets, remedy="see whether the files of the secrets can be read"),
        Check(name="generals", look=settings_file.generals, remedy="kingdom general validate"),
    ]


def _store() -> list[Check]:
    url = "correct database_url in kingdom.yaml, KINGDOM_DATABASE_URL or DATABASE_URL"
    return [
        Check(name="directory", look=files_store.directory, remedy=_DISK),
        Check(name="file-system", look=files_store.file_system, remedy=_DISK),
        Check(name="disk", look=files_store.disk, remedy=_DISK),
        Check(name="lock", look=files_store.lock, remedy=_DISK),
        Check(name="leases", look=files_store.leases, remedy=_DISK),
        Check(name="event-files", look=files_store.event_files, remedy=_DISK),
        Check(name="embedded-server", look=embedded.embedded_server, remedy=_DISK),
        Check(name="store", look=store.opens, remedy=url),
        Check(name="migrations", look=store.migrations, remedy="kingdom bus migrate"),
        Check(name="roles", look=store.roles, remedy="kingdom status"),
    ]


def _outside() -> list[Check]:
    return [
        Check(name="github", look=outside.github, remedy=_NETWORK, asks_outside=True),
        Check(name="jira", look=outside.jira, remedy=_NETWORK, asks_outside=True),
        Check(name="slack-bot", look=outside.slack_bot, remedy=_NETWORK, asks_outside=True),
        Check(name="slack-socket", look=outside.slack_socket, remedy=_NETWORK, asks_outside=True),
        Check(name="webhook-port", look=webhook.port, remedy="set sentinel.github.webhook.port to another"),
        Check(name="webhook", look=webhook.reachable, remedy="kingdom role sentinel"),
        Check(name="envoy-webhook", look=webhook.envoy_webhook, remedy=_NETWORK, asks_outside=True),
    ]
