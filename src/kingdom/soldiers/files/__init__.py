"""Safe access to files that agents can change: open, remove and measure them."""
