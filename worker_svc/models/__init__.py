"""Models: decoders, encoders and draft heads, built from layers and a model's description."""
