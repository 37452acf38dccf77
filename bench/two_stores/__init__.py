"""Two stores that hand events to each other by topics, while their processes, databases and brokers are killed."""
