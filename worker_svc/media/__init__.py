"""Media: encodes images, keeps their embeddings, and gives each token of a step its embedding and its positions."""
