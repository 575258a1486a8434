"""The tokenizer: text to ids, ids to text, and its files."""
