"""Values that all packages of the worker share: plans, results, device interfaces, rows of the batch."""
