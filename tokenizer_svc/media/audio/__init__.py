"""Audio: decodes audio files, and knows the feature extractors of the families of models."""
