"""The page /docs: every endpoint of /openapi.json, to read and to try."""
