"""Values that every room of the worker knows: plans, results, device interfaces, rows of the batch."""
