"""Documentation of /v1/chat/completions: the example answer. The structs of objects.py describe its fields."""

from tetrad.frontend.api.http.documentation.schemas import EXAMPLE_MODEL, EXAMPLE_TEXT

CHAT_EXAMPLE = {
    "id": "chatcmpl-9f2d",
    "object": "chat.completion",
    "created": 1767225600,
    "model": EXAMPLE_MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": EXAMPLE_TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": {
        "prompt_tokens": 36,
        "completion_tokens": 8,
        "total_tokens": 44,
        "prompt_tokens_details": {"cached_tokens": 32},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
}
