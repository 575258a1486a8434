"""engine_core_svc: decides what runs next, and owns the ids of the KV blocks. Never computes on tensors."""
