"""Access: checks the permissions of callers and operators, by the same rules for HTTP and gRPC."""
