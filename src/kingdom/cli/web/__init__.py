"""`kingdom web …`: the web interface and the HTTP API."""
