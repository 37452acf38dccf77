"""What each setting of `kingdom.yaml` means, by the type that has it."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.realm import Realm

_SEEN_DAYS = "For so many days something that was seen is not taken for new."
_POLL_SECONDS = "The time between two looks."
_LOOK_BACK = "How far the very first look goes back."
_WORDS: Words = {
    "Realm": {
        "database_url": (
            "Where everything is kept: `file:DIRECTORY`, `embedded:DIRECTORY`, `postgresql://…`, or `env:NAME` for the"
            " variable that says so. Nothing said: that of `DATABASE_URL`, else `file:realm`."
        ),
        "time_zone": "Days, schedules and reports go by it.",
        "channel": "Where people are told, unless a part below or a General names another channel.",
        "lease_seconds": "What a process that was killed had in hand goes to another one after so long.",
        "heartbeat_seconds": "How often each role gives a sign of life.",
        "generals": "Where the Generals lie. Nothing said: `generals` in the store of files, or beside this file.",
        "sentinel": "What is watched.",
        "king": "How much runs at once, and what a day may cost.",
        "soldiers": "How agents are run on this machine.",
        "envoy": "Where people are told and asked.",
        "chamberlain": "How the house is watched over.",
    },
    "SentinelSettings": {
        "github": "Nothing said: GitHub is not watched, and nothing can be done there.",
        "jira": "Nothing said: Jira is not watched, and nothing can be done there.",
    },
    "GitHubSettings": {
        "seen_days": _SEEN_DAYS,
        "token": "A classic token with the scopes `notifications` and `repo`.",
        "logins": "All names under which we act, the first that of the token. What they do is no news.",
        "api_url": "Where its API is; another one for GitHub Enterprise.",
        "poll_seconds": _POLL_SECONDS,
        "repos": "Which repositories are ours, as globs; where one names no owner, Generals must name `repos`.",
        "reasons": "Which reasons of a notification count, such as `review_requested`. None named: every one.",
        "ignore_actors": "Whose doings are ignored, as globs, such as `*[bot]`.",
        "webhook": "Where GitHub reaches us. Nothing said: it is only asked.",
        "look_back_hours": _LOOK_BACK,
    },
    "kingdom.court.sentinel.settings.WebhookSettings": {
        "secrets": "What signs a delivery. Several while one follows another.",
        "host": "The address to listen on.",
        "port": "The port to listen on; 0 takes a free one.",
        "body_bytes_max": "A larger delivery is refused.",
        "body_seconds": "A delivery that takes longer to arrive is refused.",
        "store_seconds": "A delivery that cannot be stored for so long is refused; the next look brings it.",
    },
    "JiraSettings": {
        "seen_days": _SEEN_DAYS,
        "url": "Where Jira is, such as `https://acme.atlassian.net`.",
        "email": "The account that the token belongs to.",
        "token": "The API token of that account.",
        "own_accounts": "The ids of all accounts under which we act. None named: that of the token.",
        "jql": "Which tickets are ours; without `ORDER BY`.",
        "poll_seconds": _POLL_SECONDS,
        "look_back_hours": _LOOK_BACK,
    },
    "KingSettings": {
        "every_seconds": "The time between two looks of the King by himself; events wake him at once.",
        "soldiers": "So many assignments run at once, in all.",
        "soldiers_per_repo": "So many assignments run at once in one repository.",
        "daily_usd": "What a day may cost.",
        "warning_percent": "From this share of it on, nothing of low priority begins.",
        "critical_percent": "From this share of it on, only what is urgent or has waited for long begins.",
        "reserved_usd": "What is set aside for an assignment whose General has no budget, and what its run may cost.",
        "health_stale_seconds": "An older reading of the health counts as orange.",
        "schedule_late_seconds": "A time of a schedule that is longer ago was missed, and is left to `catch_up`.",
        "channel": "Where people are told of assignments whose General names no channel.",
    },
    "SoldierSettings": {
        "name": "The name of this host. Nothing said: that of the machine.",
        "slots": "So many agents run at once on this machine.",
        "directory": "Where checkouts and transcripts lie. Nothing said: the directory of the realm.",
        "agent": "Which agent is run.",
        "command": "The program that takes a prompt on its standard input, where the agent is `command`.",
        "path": "Folders of programs that agents find before those of the system, and may read.",
        "agents": "Where `npm install --prefix` has put codex, gemini or opencode.",
        "model": "Where agents find their model.",
        "sandbox": "What agents may see: `strict`; `dev` adds the network and the tools of this machine; `off` is all.",
        "egress": (
            "Hosts that programs in the sandbox `strict` reach over https: a name, or `*.name` for all below it; see"
            " [Hosts by name](../security.md#hosts-by-name)."
        ),
        "may_commit": "Whether agents may commit on the branch of their run; otherwise it is done for them.",
        "disk_mb": "How many MiB of disk the files of one run may take together; 0 sets no limit.",
        "files": "Where files lie that git ignores and checkouts need; see [Fresh checkouts](../outfit.md).",
        "setup": "What is run once in each fresh checkout, by the id of its Git, in place of its `.kingdom/setup.sh`.",
        "lease_seconds": "A host that gives no sign of life for so long is lost, and its runs go on elsewhere.",
    },
    "ModelSettings": {
        "vendor": "Whose protocol the model speaks, where the agent is `command`; the others know.",
        "url": "Where the model is. Nothing said: at the vendor's own address.",
        "key": "The key to it, which agents never see. Nothing said: the variable of the vendor.",
        "prices": "What models cost, by their names without a date, before what Kingdom knows of their prices.",
    },
    "Price": {
        "input": "A million tokens of a prompt, in US dollars.",
        "output": "A million tokens of an answer.",
        "cache_read": "A million tokens of a prompt that the vendor had in its cache. Nothing said: as `input`.",
        "cache_write": "A million tokens that the vendor puts into its cache. Nothing said: `input` and a quarter.",
    },
    "EnvoySettings": {
        "slack": "Tell and ask people in Slack.",
        "webhook": "Tell people by a signed webhook. Not together with Slack.",
        "channel": "Where something is told that names no channel: a name, an id, or a person's id.",
        "every_seconds": "The time between two looks at open questions.",
    },
    "SlackSettings": {
        "bot_token": "The token of the bot, `xoxb-…`: it speaks.",
        "app_token": "The token of the app, `xapp-…`: it listens. Nothing said: answers come by the command line.",
        "base_url": "Where its API is.",
        "settles_after_seconds": "A message that is not there so long after it was sent never arrived.",
        "call_seconds": "A call that takes longer is given up.",
    },
    "kingdom.court.envoy.settings.WebhookSettings": {
        "url": "Where messages are posted.",
        "secret": "What signs them.",
    },
    "ChamberlainSettings": {
        "every_seconds": "The time between two rounds.",
        "channel": "Where people are told of what is unusual, and get the daily report.",
        "clean_up_hour": "From this hour on, what is too old is removed.",
        "report_hour": "From this hour on, the day before is reported.",
        "report_days_back": "So many days that nobody was there for are still reported.",
        "retention": "How long what has ended is kept.",
        "health": "When a machine is how busy.",
        "budget": "When people are told of the day's money.",
        "anomalies": "What is unusual.",
        "heartbeat": "When a role is missed.",
    },
    "RetentionSettings": {
        "log_max_mb": "A log for people that is larger is put aside.",
        "logs_days": "Logs that were put aside, and the days of the log of events.",
        "results_days": "Results, and the files beside them.",
        "queue_days": "Events, assignments and messages that have ended.",
        "prompts_days": "What agents were asked.",
        "session_logs_days": "The logs of agent sessions.",
        "seen_days": "Which events were seen.",
    },
    "HealthSettings": {
        "yellow": "Percent of processors or memory from which on only what is urgent begins.",
        "orange": "Percent from which on nothing begins.",
        "red": "Percent from which on people are told too.",
        "disk_yellow": "The same for disks.",
        "disk_orange": "The same for disks; a disk alone is never red.",
        "margin": "A level is left so many points below the one at which it began.",
        "stale_seconds": "After so long without a new reading a machine is not counted any more.",
    },
    "BudgetSettings": {
        "warning_percent": "From this share of the day's money on people are told; the King's own, unless he has one.",
        "critical_percent": "The same, the second time.",
    },
    "AnomalySettings": {
        "failures_in_a_row": "So many failures of one General without a success between them.",
        "timeouts": "So many agents that took too long, within the window below.",
        "timeouts_window_minutes": "The window for it.",
        "undispatched_minutes": "An event that waits for so long without a decision.",
        "cool_down_minutes": "For so long people are not told the same again.",
        "settle_seconds": "So long an entry of the log is waited with, since an earlier one may be written later.",
    },
    "HeartbeatSettings": {
        "threshold_seconds": "A role that is silent for longer is missed.",
    },
}


def settings_schema() -> dict[str, Any]:
    """Return the schema of the settings file."""
    return schema_of(Realm, _WORDS)
