"""Which engine core gets a request: by how busy each is, and by the prefixes that it holds already."""
