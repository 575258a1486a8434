"""KV blocks: their owners, and the prefixes in them that several requests share."""
