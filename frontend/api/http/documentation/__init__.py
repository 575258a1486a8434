"""/docs and /openapi.json: every endpoint, field, answer and error, made from what the code itself uses."""
