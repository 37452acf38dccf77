"""The web server: the HTTP API and the pages. Each of their actions is also a command, with the same words."""
