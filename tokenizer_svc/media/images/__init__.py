"""Images: decodes image files, and knows the image processors of the families of models."""
