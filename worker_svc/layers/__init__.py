"""Layers that models are composed of."""
