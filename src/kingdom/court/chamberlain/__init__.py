"""The Chamberlain: watches over the house, its health, its money and its memory."""
