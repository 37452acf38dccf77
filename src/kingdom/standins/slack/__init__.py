"""A local Slack: one workspace with one app, its Web API, Socket Mode and the people who write to it."""

from kingdom.standins.slack.application import slack

__all__ = ["slack"]
