"""The cost of the hot statements as tables grow: buffers per statement, with bounds."""
