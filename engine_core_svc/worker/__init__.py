"""The connection to the workers: sends plans, receives results, and reports its loss."""
