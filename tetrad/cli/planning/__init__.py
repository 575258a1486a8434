"""Planning: computes memory, rates and communication of every split of a model over GPUs, from its config only."""
