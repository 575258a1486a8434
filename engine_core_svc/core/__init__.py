"""Values that every room of the engine core knows: requests, plans, results."""
