"""Ollama's API: generation, chat, embeddings and facts about the model, for Ollama's clients."""
