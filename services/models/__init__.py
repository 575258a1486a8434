"""The files of models: directories, GGUF files and their parts, and locks on them."""
