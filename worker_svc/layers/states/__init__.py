"""Layers that keep a state for each sequence: short convolutions, Mamba2, gated delta nets."""
