"""Formats of tool calls: one file per format."""
