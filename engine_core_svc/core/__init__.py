"""Values that all packages of the engine core use: requests, plans, results."""
