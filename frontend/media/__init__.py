"""Media: images in prompts, from the content parts of requests to the bytes that the tokenizer preprocesses.

Reads and fetches files by the operator's rules. Decodes no pixels.
"""
