"""The step loop, and the parts that run between two steps."""
