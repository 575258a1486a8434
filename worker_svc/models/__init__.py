"""Models: one file a family, composed from layers; registry.py finds them by architecture."""
