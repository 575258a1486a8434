"""Formats of reasoning: one file per format."""
