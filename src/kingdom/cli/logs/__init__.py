"""`kingdom logs`: the transcripts of a run's agents."""
