"""KV blocks: their allocation, and the prefixes in them that several requests share."""
