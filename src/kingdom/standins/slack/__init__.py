"""A local server that behaves like Slack: one workspace and one app, with the Web API and Socket Mode."""
