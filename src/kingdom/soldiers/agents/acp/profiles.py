"""Profiles of the tested agents; packaging/agents pins their versions."""

from kingdom.soldiers.agents.acp.profile import AcpProfile, CostSource
from kingdom.soldiers.sandbox import prices
from kingdom.soldiers.sandbox.vendors import Vendor

CODEX = AcpProfile(
    name="codex",
    vendor=Vendor.OPENAI,
    program="codex-acp",
    npm_packages="@openai/codex @agentclientprotocol/codex-acp",
    model="gpt-5-codex",
    url="https://api.openai.com",
    environment={"CODEX_HOME": "$folder", "OPENAI_API_KEY": "none", "NO_BROWSER": "1"},
    files={
        "config.toml": """\
model = "$model"
model_provider = "kingdom"
project_doc_fallback_filenames = ["CLAUDE.md"]
check_for_update_on_startup = false
mcp_optional_startup_grace_ms = 30000

[model_providers.kingdom]
name = "kingdom"
base_url = "$url/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 4
stream_max_retries = 4
stream_idle_timeout_ms = 300000

[features]
plugins = false

[analytics]
enabled = false
""",
        "AGENTS.md": "$instructions",
    },
    prices=prices.OPENAI.models,
    session_mode="agent-full-access",
    has_notices=True,
    gone_error="app-server exited",
    failure_marker=("codex", "threadStatus", "type", "systemError"),
)

GEMINI = AcpProfile(
    name="gemini",
    vendor=Vendor.GEMINI,
    program="gemini",
    npm_packages="@google/gemini-cli",
    model="gemini-2.5-pro",
    url="https://generativelanguage.googleapis.com",
    arguments=("--acp", "--model", "$model"),
    environment={
        "GEMINI_CLI_HOME": "$folder",
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": "$url",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        # Without this variable gemini starts itself again as a child process, which survives if its parent is killed.
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_TELEMETRY_ENABLED": "false",
    },
    files={
        ".gemini/settings.json": """\
{
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "context": {"fileName": ["GEMINI.md", "AGENTS.md", "CLAUDE.md"]},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
  "privacy": {"usageStatisticsEnabled": false},
  "ide": {"enabled": false}
}
""",
        ".gemini/GEMINI.md": "$instructions",
    },
    prices=prices.GEMINI.models,
    cost_source=CostSource.QUOTA,
    loads_session=True,
    # The name of a session's file contains the minute, so gemini would overwrite the file if it loaded the session
    # within the first minute.
    conflicting_files=".gemini/tmp/*/chats/session-*-$session.jsonl",
    ends_with_input=False,
    tool_name_in_call_id=True,
)

OPENCODE = AcpProfile(
    name="opencode",
    vendor=Vendor.OPENAI,
    program="opencode",
    npm_packages="opencode-ai",
    model="gpt-5",
    url="https://api.openai.com",
    arguments=("acp",),
    environment={
        "XDG_CONFIG_HOME": "$folder/config",
        "XDG_DATA_HOME": "$folder/data",
        "XDG_STATE_HOME": "$folder/state",
        "XDG_CACHE_HOME": "$folder/cache",
        "OPENAI_API_KEY": "none",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        # A repository must not change the settings of the agent.
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_PURE": "1",
    },
    files={
        # opencode reports no cost unless the context size is set.
        "config/opencode/opencode.json": """\
{
  "autoupdate": false,
  "share": "disabled",
  "model": "kingdom/$model",
  "small_model": "kingdom/$model",
  "provider": {"kingdom": {
    "npm": "@ai-sdk/openai-compatible",
    "name": "kingdom",
    "options": {"baseURL": "$url/v1", "apiKey": "{env:OPENAI_API_KEY}", "timeout": 300000},
    "models": {"$model": {
      "name": "$model",
      "tool_call": true,
      "limit": {"context": 200000, "output": 32000},
      "cost": {"input": $input, "output": $output, "cache_read": $cache_read}
    }}
  }},
  "permission": {"*": "allow", "external_directory": "allow", "doom_loop": "allow"}
}
""",
        "config/opencode/AGENTS.md": "$instructions",
        # These two files mark the plugin package as installed; otherwise opencode downloads it at every start.
        "config/opencode/package-lock.json": '{"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}\n',
        "config/opencode/node_modules/.package-lock.json": "{}\n",
    },
    prices=prices.OPENAI.models,
    cost_source=CostSource.SESSION,
)

PROFILES = {profile.name: profile for profile in (CODEX, GEMINI, OPENCODE)}
