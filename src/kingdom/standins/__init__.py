"""Local servers that behave like GitHub, Slack and Jira, for tests and the demo."""
