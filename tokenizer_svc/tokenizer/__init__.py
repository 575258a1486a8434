"""The tokenizer: converts text to ids and ids to text, and packs its files."""
