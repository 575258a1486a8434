"""vLLM's scale-out API: requests as token ids (render), and answers to token ids (generate)."""
