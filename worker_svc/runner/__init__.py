"""Model runners: each executes the steps of a model, from plans to results."""
