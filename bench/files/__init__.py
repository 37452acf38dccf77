"""What the bus on files costs beside bare loops doing the same to the same disk, and beside other file queues."""
