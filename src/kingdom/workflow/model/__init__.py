"""What a run is: pure, without any I/O; its events, its commands, and the steps that move it."""
