"""`kingdom workflow …`: runs."""
