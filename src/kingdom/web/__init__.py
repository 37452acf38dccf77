"""The HTTP API and its server. Everything that it can do, the command line can do with the same words."""
