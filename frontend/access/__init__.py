"""Access: permissions of callers and operators; one rule for HTTP and gRPC."""
