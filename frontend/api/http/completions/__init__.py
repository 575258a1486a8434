"""/v1/completions: the body and the route."""
