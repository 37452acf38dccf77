"""`kingdom top`: the live screen."""
