"""A local server that behaves like Jira Cloud: search, tickets, comments and transitions."""
