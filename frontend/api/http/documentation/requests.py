"""Example requests: a body for each endpoint, which the page /docs sends when a reader tries it. None names a served model."""

from typing import Any

_QUESTION = [{"role": "user", "content": "Name the capital of France."}]
_TEXTS = ["Paris is the capital of France.", "Bread is made of flour."]

REQUESTS: dict[str, Any] = {
    "CompletionRequest": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "ChatCompletionRequest": {"messages": _QUESTION, "max_tokens": 32, "temperature": 0},
    "MessagesRequest": {"messages": _QUESTION, "max_tokens": 32, "temperature": 0},
    "CountTokensRequest": {"messages": _QUESTION},
    "ResponsesRequest": {"input": "Name the capital of France.", "max_output_tokens": 32, "temperature": 0},
    "InputTokensRequest": {"input": "Name the capital of France."},
    "GenerateRequest": {"prompt": "Name the capital of France.", "stream": False, "options": {"temperature": 0}},
    "ChatRequest": {"messages": _QUESTION, "stream": False, "options": {"temperature": 0}},
    "ShowRequest": {},
    "TokenizeRequest": {"prompt": "The capital of France is"},
    "RenderCompletionRequest": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "RenderChatRequest": {"messages": _QUESTION, "max_tokens": 32, "temperature": 0},
    "RenderMessagesRequest": {"messages": _QUESTION, "max_tokens": 32, "temperature": 0},
    "RenderResponsesRequest": {"input": "Name the capital of France.", "max_output_tokens": 32, "temperature": 0},
    "TokensRequest": {"token_ids": [504, 3575], "sampling_params": {"max_tokens": 8, "temperature": 0}},
    "DerenderChatBody": {
        "generate_response": {"request_id": "generate-tokens-1", "choices": [{"index": 0, "token_ids": [72, 105]}]},
        "chat_request": {"messages": _QUESTION},
    },
    "DerenderCompletionBody": {
        "generate_responses": [{"request_id": "generate-tokens-1", "choices": [{"index": 0, "token_ids": [72, 105]}]}]
    },
    "AbortRequest": {"request_ids": ["generate-tokens-1"]},
    "DetokenizeRequest": {"tokens": [504, 3575]},
    "EmbeddingRequest": {"input": _TEXTS},
    "ClassifyRequest": {"input": _TEXTS},
    "PoolingRequest": {"input": _TEXTS},
    "ScoreRequest": {"text_1": "capital of France", "text_2": _TEXTS},
    "RerankRequest": {"query": "capital of France", "documents": _TEXTS},
    "CohereEmbedRequest": {"texts": _TEXTS, "input_type": "search_document", "embedding_types": ["float"]},
    "EmbedRequest": {"input": _TEXTS},
    "EmbeddingsRequest": {"prompt": _TEXTS[0]},
    "FurtherModel": {
        "served_model_names": ["reader"],
        "tokenizer_targets": ["dns:///tokenizer-reader:50051"],
        "engine_targets": ["dns:///engine-core-reader:50052"],
        "engine_admin_targets": ["dns:///engine-core-reader:50054"],
    },
    "UnloadModelRequest": {"model": "reader"},
    "UpdateFromDiskRequest": {"model_path": "/checkpoints/100", "weight_version": "step-100"},
    "InitTransferRequest": {"init_info": {"backend": "disk"}},
    "UpdateWeightsRequest": {"update_info": {"path": "/checkpoints/100"}},
    "FinishUpdateRequest": {"weight_version": "step-100"},
    "RenameWeightsRequest": {"new_version": "step-100"},
}
"""Name of a body's schema -> its example."""
