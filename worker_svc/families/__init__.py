"""Families of models: read the structure of a model from its config. Never imports torch."""
