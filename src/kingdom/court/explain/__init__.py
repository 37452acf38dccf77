"""What became of one thing, from the event outside to the result: read from the store, told as one timeline."""
