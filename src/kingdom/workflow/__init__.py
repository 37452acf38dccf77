"""What a run is: a pure model without I/O, its events, its commands, and the steps that move it."""
