"""vLLM's scale-out API: requests as token ids (render), generation from them, and token ids as answers (derender)."""
