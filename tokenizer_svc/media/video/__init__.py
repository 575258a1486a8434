"""Video: decodes video files, and knows the video processors of the families of models."""
