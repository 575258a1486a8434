"""Engine core: schedules the tokens of each step and owns the ids of the KV blocks. Never computes on tensors."""
