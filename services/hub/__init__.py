"""The Hugging Face hub: model names, the files of a model, downloads, and the contents of the cache."""
