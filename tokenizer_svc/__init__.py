"""The tokenizer service: text to token ids and back, chat templates, incremental detokenization. It imports no torch."""
