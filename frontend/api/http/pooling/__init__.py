"""Routes of pooling models: embeddings, classes, scores. With OpenAI's, vLLM's, Jina's and Cohere's field names."""
