"""`kingdom event …`: events from outside systems."""
