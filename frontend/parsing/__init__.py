"""Parsing: splits the text of a model's turn into reasoning, content and tool calls. Pure: no I/O, no clock, no requests."""
