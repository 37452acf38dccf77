"""The live screen of `kingdom top`: what the store says now, and the few things that a person does about it."""
