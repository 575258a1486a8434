"""The link to the worker: plans out, results in, and its loss."""
