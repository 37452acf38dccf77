"""Descriptions of the settings in `kingdom.yaml`."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.realm import Realm

_SEEN_DAYS = (
    "The days for which seen items are remembered, so that they do not count as new. Default: that of"
    " `chamberlain.retention`."
)
_POLL_SECONDS = "The time between two polls."
_LOOK_BACK = "How far the first poll looks back."
_WORDS: Words = {
    "Realm": {
        "database_url": (
            "The store: `file:DIRECTORY`, `embedded:DIRECTORY`, `postgresql://…`, or `env:NAME` for a variable that"
            " contains it. Default: `DATABASE_URL`, or else `file:realm`."
        ),
        "time_zone": "The time zone of days, schedules and reports.",
        "channel": "The channel for messages to people, unless a part below or a General names another one.",
        "lease_seconds": "The time after which the work of a killed process goes to another one.",
        "heartbeat_seconds": "The time between two heartbeats of a role.",
        "generals": "The folder of the Generals. Default: `generals` in the store of files, or next to this file.",
        "sentinel": "What the Sentinel watches.",
        "king": "How much runs at once, and what a day may cost.",
        "soldiers": "How this machine runs agents.",
        "envoy": "How people get messages and questions.",
        "chamberlain": "How the Chamberlain watches over the court.",
        "web": "The web interface and the HTTP API; `off` turns them off.",
    },
    "WebSettings": {
        "address": "Where to listen: `HOST:PORT`, or `unix:PATH` for a Unix socket.",
        "url": "The address that people use, if a proxy is in front; with `https`, cookies are secure.",
        "insecure": "Whether to listen on an address that other machines can reach, without https.",
        "session_days": "The days after which a person must sign in again.",
        "proxy": "A proxy that signs people in. Default: none.",
    },
    "ProxySettings": {
        "header": "The header with the name of the person.",
        "secret": "The secret that the proxy sends as `X-Kingdom-Proxy-Secret`; not needed over a Unix socket.",
        "people": "The rights of each person: a list of `look`, `answer`, `act` and `administer`.",
    },
    "SentinelSettings": {
        "github": "Default: GitHub is not used.",
        "jira": "Default: Jira is not used.",
    },
    "GitHubSettings": {
        "seen_days": _SEEN_DAYS,
        "token": "A classic token with the scopes `notifications` and `repo`. Default: none; then an `app` is needed.",
        "app": "A GitHub App that performs petitions instead of the token. Default: none.",
        "logins": "The accounts that Kingdom uses, the owner of the token first. Their own actions are ignored.",
        "api_url": "The address of the API; change it for GitHub Enterprise.",
        "poll_seconds": _POLL_SECONDS,
        "repos": "Globs of the repositories to watch; with a glob for many owners (`*/app`), Generals need `repos`.",
        "reasons": "The accepted reasons of a notification, such as `review_requested`. Default: all.",
        "ignore_actors": "Accounts whose actions are ignored, as globs, such as `*[bot]`.",
        "webhook": "The address for webhooks from GitHub. Default: GitHub is only polled.",
        "look_back_hours": _LOOK_BACK,
    },
    "GitHubAppSettings": {
        "id": "The number of the App, from its settings on GitHub.",
        "key": "A private key of the App in PEM format, such as `file:app.pem`.",
        "installation": "The number of the installation, from the address of its page on GitHub.",
    },
    "GitHubWebhookSettings": {
        "secrets": "The secrets that sign a delivery. List two while you replace one by the other.",
        "host": "The address to listen on.",
        "port": "The port to listen on; 0 takes a free one.",
        "body_bytes_max": "Larger deliveries are rejected.",
        "body_seconds": "A delivery that takes longer to arrive is rejected.",
        "store_seconds": "A delivery that takes longer to store is rejected; with a token, the next poll finds it.",
    },
    "JiraSettings": {
        "seen_days": _SEEN_DAYS,
        "url": "The address of Jira, such as `https://acme.atlassian.net`.",
        "email": "The account that the token belongs to.",
        "token": "The API token of that account.",
        "own_accounts": "The ids of the accounts that Kingdom uses. Default: that of the token.",
        "jql": "The tickets to watch, as JQL without `ORDER BY`.",
        "poll_seconds": _POLL_SECONDS,
        "look_back_hours": _LOOK_BACK,
    },
    "KingSettings": {
        "every_seconds": "The time between two checks of the King; an event starts a check immediately.",
        "soldiers": "How many assignments run at once in total.",
        "soldiers_per_repo": "How many assignments run at once in one repository.",
        "daily_usd": "The budget of a day.",
        "warning_percent": (
            "From this share of the budget on, events with low priority do not start. Default: that of"
            " `chamberlain.budget`."
        ),
        "critical_percent": (
            "From this share of the budget on, only urgent or long waiting events start. Default: that of"
            " `chamberlain.budget`."
        ),
        "reserved_usd": "The budget of a run whose General has none; it is reserved before the run starts.",
        "health_stale_seconds": "A health measurement that is older than this counts as orange.",
        "schedule_late_seconds": "A scheduled time counts as missed after this delay; then `catch_up` applies.",
        "channel": "The channel for assignments whose General has none.",
    },
    "SoldierSettings": {
        "name": "The name of this host. Default: that of the machine.",
        "slots": "How many agents run at once on this machine.",
        "directory": "The folder of checkouts and transcripts. Default: the directory of the realm.",
        "agent": "The agent to run.",
        "command": "The program that reads a prompt on standard input, if the agent is `command`.",
        "path": "Folders of programs; agents can read them and find these programs before those of the system.",
        "agents": "The folder into which `npm install --prefix` installed codex, gemini or opencode.",
        "model": "The model of the agents.",
        "sandbox": "`strict` isolates agents; `dev` adds the network and this machine's tools; `off` does not isolate.",
        "egress": (
            "Hosts that programs in the sandbox `strict` can reach over https: a name, or `*.name` for subdomains; see"
            " [Hosts by name](../security.md#hosts-by-name)."
        ),
        "may_commit": "Whether agents may commit on the branch of their run; otherwise Kingdom commits for them.",
        "disk_mb": "The MiB of disk for all files of one run; 0 sets no limit.",
        "files": "The folder of files that git ignores and checkouts need; see [Checkout setup](../checkout-setup.md).",
        "setup": "Maps ids of registered repositories to scripts for fresh checkouts, instead of `.kingdom/setup.sh`.",
        "lease_seconds": "A host without a heartbeat for this long is lost, and its runs continue elsewhere.",
    },
    "ModelSettings": {
        "vendor": "The vendor whose protocol the model speaks, if the agent is `command`; other agents know it.",
        "url": "The address of the model. Default: that of the vendor.",
        "key": "The key of the model, which agents never see. Default: the variable of the vendor.",
        "prices": "Prices of models by their names without a date; they override the prices that Kingdom knows.",
    },
    "Price": {
        "input": "US dollars for a million tokens of a prompt.",
        "output": "US dollars for a million tokens of an answer.",
        "cache_read": "US dollars for a million cached tokens of a prompt. Default: as `input`.",
        "cache_write": "US dollars for a million tokens written to the cache. Default: 1.25 times `input`.",
    },
    "EnvoySettings": {
        "slack": "Send messages and questions to Slack.",
        "webhook": "Send messages to a signed webhook. Not together with Slack.",
        "channel": "The channel for messages without one: a name, an id, or the id of a person.",
        "every_seconds": "The time between two checks of open questions.",
    },
    "SlackSettings": {
        "bot_token": "The token of the bot, `xoxb-…`, which sends messages.",
        "app_token": (
            "The token of the app, `xapp-…`, which receives answers. Default: answer on the web or the command line."
        ),
        "base_url": "The address of the API.",
        "settles_after_seconds": "A message that Slack still does not show after this time counts as not delivered.",
        "call_seconds": "The time limit of a call.",
    },
    "EnvoyWebhookSettings": {
        "url": "The address that messages are posted to.",
        "secret": "The secret that signs them.",
    },
    "ChamberlainSettings": {
        "every_seconds": "The time between two rounds.",
        "channel": "The channel for warnings and the daily report.",
        "clean_up_hour": "The hour from which expired data is removed.",
        "report_hour": "The hour from which the previous day is reported.",
        "report_days_back": "How many past days are reported later if their report was missed.",
        "retention": "How long finished data is kept.",
        "health": "The thresholds of the health of a machine.",
        "budget": "When people are warned about the day's spending.",
        "anomalies": "What counts as unusual.",
        "heartbeat": "When a role counts as missing.",
    },
    "RetentionSettings": {
        "log_max_mb": "Text logs larger than this are rotated.",
        "logs_days": "Days to keep rotated logs and the event log.",
        "results_days": "Days to keep results and their files.",
        "queue_days": "Days to keep finished events, assignments and messages.",
        "prompts_days": "Days to keep prompts.",
        "session_logs_days": "Days to keep the logs of agent sessions.",
        "seen_days": "Days to remember seen events.",
    },
    "HealthSettings": {
        "yellow": (
            "The percentage of used memory from which only urgent work starts, and of CPU pressure from which half of"
            " the slots are used."
        ),
        "orange": (
            "The percentage of used memory from which nothing starts, and of CPU pressure from which one run at a time"
            " starts."
        ),
        "red": "The percentage of used memory from which people are also warned. CPU pressure warns nobody.",
        "disk_yellow": "The percentage of used disk space from which only urgent work starts.",
        "disk_orange": "The percentage of used disk space from which nothing starts; a disk alone is never red.",
        "margin": "A level ends when the value is this many points below the threshold of the level.",
        "stale_seconds": "A machine without a new measurement for this long is ignored.",
    },
    "BudgetSettings": {
        "warning_percent": "The share of the day's budget from which people are warned, and the default of the King.",
        "critical_percent": "The same for the second warning.",
    },
    "AnomalySettings": {
        "failures_in_a_row": "Consecutive failures of one General.",
        "timeouts": "Agents that exceeded their time limit, within the window below.",
        "timeouts_window_minutes": "The window for timeouts.",
        "undispatched_minutes": "The time that an event waits without a decision.",
        "cool_down_minutes": "The time before the same warning is repeated.",
        "settle_seconds": "The time before a log entry is evaluated, because earlier entries can arrive later.",
    },
    "HeartbeatSettings": {
        "threshold_seconds": "A role without a heartbeat for longer than this counts as missing.",
    },
}


def settings_schema() -> dict[str, Any]:
    """Return the schema of the settings file."""
    return schema_of(Realm, _WORDS)
