"""What an agent may say to the house: tools that it calls, and what becomes of the calls."""
