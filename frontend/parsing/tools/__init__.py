"""The formats of tool calls, one file per format."""
