"""The list of all checks, in the order of the output."""

from kingdom.doctor import (
    agents,
    embedded_server,
    external_services,
    files_store,
    kafka,
    machine,
    settings_file,
    store,
    web,
    webhook,
)
from kingdom.doctor.check import Check
from kingdom.doctor.database_checks import database_checks

_NETWORK = "check the address in kingdom.yaml, and the proxy, firewall and DNS on the way to it"
_BROKERS = "check KINGDOM_KAFKA_SERVERS, and whether the brokers respond"
_DISK = "check whether the disk responds: dmesg | tail"


def all_checks() -> list[Check]:
    """Return all checks."""
    return [*_machine(), *_settings(), *_store(), *database_checks(), *_external_services()]


def _machine() -> list[Check]:
    return [
        Check(name="python", run=machine.check_python, remedy="install Python 3.11 or newer"),
        Check(name="git", run=machine.check_git, remedy="find out what `git --version` waits for"),
        Check(name="bubblewrap", run=machine.check_bubblewrap, remedy="find out what `bwrap --version` waits for"),
        Check(name="sandbox", run=machine.check_sandbox, remedy="kingdom config check"),
        Check(name="open-files", run=machine.check_open_files, remedy="ulimit -n 4096"),
        Check(name="inotify", run=machine.check_inotify, remedy="sudo sysctl fs.inotify.max_user_instances=1024"),
        Check(name="clock", run=machine.check_clock, remedy="sudo timedatectl set-ntp true"),
        Check(name="load", run=machine.check_load, remedy="find out what keeps the machine busy: top"),
        Check(name="agent", run=agents.check_agent, remedy=agents.REMEDY),
    ]


def _settings() -> list[Check]:
    return [
        Check(name="environment", run=settings_file.check_environment, remedy="env | grep KINGDOM"),
        Check(name="kingdom.yaml", run=settings_file.check_settings_file, remedy="kingdom config check"),
        Check(name="secrets", run=settings_file.check_secrets, remedy="check whether the secret files can be read"),
        Check(name="generals", run=settings_file.check_generals, remedy="kingdom general validate"),
        Check(name="web", run=web.check_web, remedy="kingdom config check"),
    ]


def _store() -> list[Check]:
    url = "correct database_url in kingdom.yaml, KINGDOM_DATABASE_URL or DATABASE_URL"
    return [
        Check(name="directory", run=files_store.check_directory, remedy=_DISK),
        Check(name="file-system", run=files_store.check_file_system, remedy=_DISK),
        Check(name="disk", run=files_store.check_disk, remedy=_DISK),
        Check(name="lock", run=files_store.check_lock, remedy=_DISK),
        Check(name="leases", run=files_store.check_leases, remedy=_DISK),
        Check(name="event-files", run=files_store.check_event_files, remedy=_DISK),
        Check(name="embedded-server", run=embedded_server.check_embedded_server, remedy=_DISK),
        Check(name="store", run=store.check_store, remedy=url),
        Check(name="migrations", run=store.check_migrations, remedy="kingdom bus migrate"),
        Check(name="roles", run=store.check_roles, remedy="kingdom status"),
    ]


def _external_services() -> list[Check]:
    return [
        Check(name="github", run=external_services.check_github, remedy=_NETWORK, needs_network=True),
        Check(name="github-app", run=external_services.check_github_app, remedy=_NETWORK, needs_network=True),
        Check(name="jira", run=external_services.check_jira, remedy=_NETWORK, needs_network=True),
        Check(name="slack-bot", run=external_services.check_slack_bot, remedy=_NETWORK, needs_network=True),
        Check(name="slack-socket", run=external_services.check_slack_socket, remedy=_NETWORK, needs_network=True),
        Check(name="kafka", run=kafka.check_kafka, remedy=_BROKERS, needs_network=True),
        Check(name="webhook-port", run=webhook.check_port, remedy="set sentinel.github.webhook.port to another port"),
        Check(name="webhook", run=webhook.check_delivery, remedy="kingdom role sentinel"),
        Check(name="envoy-webhook", run=webhook.check_envoy_webhook, remedy=_NETWORK, needs_network=True),
    ]
