"""The routes /tokenize, /detokenize and /tokenizer_info."""
