"""The page /docs: shows the endpoints of /openapi.json and lets users try them."""
