"""What a program that Kingdom starts may see, reach and use up."""
