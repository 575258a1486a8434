"""LlamaIndex's class for servers that are like OpenAI's: `python llama_index_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it.
"""

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Weather of a city."""
    return f"It rains in {city}."


url, model = sys.argv[1:]
common = {
    "model": model,
    "api_base": f"{url}/v1",
    "api_key": "none",
    "context_window": 2048,
    "max_tokens": 32,
    "temperature": 0,
}
text = OpenAILike(**common, is_chat_model=False)
llm = OpenAILike(**common, is_chat_model=True, is_function_calling_model=True)
prompt = "The capital of France is"
question = [ChatMessage(role="user", content="Name the capital of France.")]
called = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], "What is the weather in Paris?", tool_required=True)
told = {
    "completed": text.complete(prompt).text,
    "complete_stream": [chunk.delta or "" for chunk in text.stream_complete(prompt)],
    "chatted": llm.chat(question).message.content,
    "chat_stream": [chunk.delta or "" for chunk in llm.stream_chat(question)],
    "calls": [[call.tool_name, call.tool_kwargs] for call in llm.get_tool_calls_from_response(called)],
}
json.dump(told, sys.stdout)
