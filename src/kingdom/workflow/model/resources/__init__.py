"""What runs are made from and run on: templates, repositories, MCP servers and hosts."""
