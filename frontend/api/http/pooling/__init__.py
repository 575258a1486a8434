"""Routes of models that pool: embeddings, classes, scores. OpenAI's, vLLM's, Jina's and Cohere's field names."""
