"""The step loop, and the parts that act between two steps."""
