"""The resources of runs: templates, repositories, MCP servers and hosts."""
