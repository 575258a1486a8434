"""KV blocks: who owns which, and which of them hold a prefix that another request can share."""
