"""Commands for what runs use: templates, repositories and MCP servers."""
