"""Common parts of the Responses and the Messages API: blocks, token totals and sampling fields of a turn."""
