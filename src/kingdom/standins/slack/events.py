"""Events for the app, as envelopes that wait for an acknowledgement."""

import copy
import secrets
import time
from typing import Any

from kingdom.standins.faults import FaultQueue
from kingdom.standins.slack.workspace import app_is_in
from kingdom.standins.state_file import StateFile


def queue_message_event(
    state_file: StateFile, faults: FaultQueue, channel: dict[str, Any], message: dict[str, Any]
) -> None:
    """Queue the event of a new message if the app is in the channel. Call it inside `StateFile.change`."""
    if not app_is_in(state_file, channel):
        return
    content = {key: value for key, value in message.items() if key != "metadata"}
    event = {**content, "channel": channel["id"], "event_ts": message["ts"]}
    by_app = "bot_id" in message
    message_event = {**event, "channel_type": channel["kind"]}
    queue_envelope(
        state_file,
        faults,
        "events_api",
        "bot_message" if by_app else "message",
        _event_payload(state_file, message_event),
    )
    mention = f"<@{state_file.state['app']['user_id']}>"
    if mention in message["text"] and not by_app and channel["kind"] != "im":
        queue_envelope(
            state_file,
            faults,
            "events_api",
            "app_mention",
            _event_payload(state_file, {**event, "type": "app_mention"}),
        )


def queue_change_event(
    state_file: StateFile,
    faults: FaultQueue,
    channel: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any] | None,
) -> None:
    """Queue the event of a change. If `after` is None, the message is deleted. Call it inside `StateFile.change`."""
    subtype = "message_changed" if after else "message_deleted"
    event = {
        "type": "message",
        "subtype": subtype,
        "hidden": True,
        "channel": channel["id"],
        "channel_type": channel["kind"],
        "ts": before["ts"],
        "event_ts": before["ts"],
        "previous_message": before,
        **({"message": dict(after)} if after else {"deleted_ts": before["ts"]}),
    }
    queue_envelope(state_file, faults, "events_api", subtype, _event_payload(state_file, event))


def queue_envelope(
    state_file: StateFile, faults: FaultQueue, envelope_type: str, name: str, payload: dict[str, Any]
) -> int:
    """Store an envelope until it is acknowledged, and return its number. Call it inside `StateFile.change`."""
    fault = faults.take("PUSH", name)
    held = fault is not None and fault.kind == "reorder"
    number = state_file.next_number("envelope")
    envelope = {
        "number": number,
        "type": envelope_type,
        "payload": copy.deepcopy(payload),
        "attempts": 0,
        "held": held,
    }
    fresh = [envelope]
    if fault is not None and fault.kind == "repeat":
        # The second envelope looks like the retry that Slack sends if the first is not acknowledged in time.
        attempts = 1 if envelope_type == "events_api" else 0
        fresh.append({**envelope, "number": state_file.next_number("envelope"), "attempts": attempts})
    pending = state_file.state["pending"]
    others = [each for each in pending if not each["held"]]
    # A held envelope is sent after the next envelope that is not held.
    held_back = [{**each, "held": held} for each in pending if each["held"]]
    state_file.state["pending"] = [*others, *fresh, *held_back]
    return number


def _event_payload(state_file: StateFile, event: dict[str, Any]) -> dict[str, Any]:
    team, app = state_file.state["team"], state_file.state["app"]
    authorization = {
        "enterprise_id": None,
        "team_id": team["id"],
        "user_id": app["user_id"],
        "is_bot": True,
        "is_enterprise_install": False,
    }
    return {
        "token": "stand-in",
        "team_id": team["id"],
        "context_team_id": team["id"],
        "context_enterprise_id": None,
        "api_app_id": app["id"],
        "event": event,
        "type": "event_callback",
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": int(time.time()),
        "authorizations": [authorization],
        "is_ext_shared_channel": False,
        "event_context": f"4-{secrets.token_hex(8)}",
    }
