"""Several ranks of the cuda device: every rank runs each step with its part of the model.

Ranks with the last layers sample the same tokens, and the other ranks receive them.
"""
