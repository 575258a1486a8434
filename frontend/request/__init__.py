"""A request and its outputs as plain values: parameters, sequences, state, deadlines."""
