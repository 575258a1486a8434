"""/openapi.json: every endpoint, field, answer and error, made from the code's own declarations."""
