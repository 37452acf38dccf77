"""What the hot statements cost as tables grow: buffers of whole statements, with bounds that must hold."""
