"""Several ranks of the cuda device: every rank runs each step with its part of the model, and samples the same tokens."""
