"""`kingdom bus …` and `kingdom storage …`: the event bus and its store."""
