"""Engine core: schedules the tokens of each step and owns the ids of the KV blocks. It never computes on tensors."""
