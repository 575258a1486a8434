"""LiteLLM, with its users' first examples: `python litellm_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it. LITELLM_LOCAL_MODEL_COST_MAP keeps it from fetching prices at import.
"""

import asyncio
import json
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel


class Cat(BaseModel):
    """A cat."""

    name: Literal["Tom", "Kit"]
    age: Literal[1, 2, 3]


litellm.suppress_debug_info = True  # it would print to the standard output
url, model = sys.argv[1:]
question = [{"role": "user", "content": "Name the capital of France."}]
common = {"messages": question, "api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 64}
vllm = {"model": f"hosted_vllm/{model}", **common}
schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
weather = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": schema}}

whole = litellm.completion(**vllm)
streamed = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**vllm, stream=True)]
[call] = (
    litellm.completion(**vllm, tools=[weather], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
)
try:
    litellm.completion(**{**vllm, "model": "hosted_vllm/other"})
except litellm.NotFoundError as error:
    refused = str(error)
text = litellm.text_completion(
    model=f"text-completion-openai/{model}",
    prompt="The capital of France is",
    api_base=f"{url}/v1",
    api_key="none",
    max_tokens=8,
)
told = {
    "completed": whole.choices[0].message.content,
    "usage": whole.usage.completion_tokens,
    "as_openai": litellm.completion(model=f"openai/{model}", **common).choices[0].message.content,
    "awaited": asyncio.run(litellm.acompletion(**vllm)).choices[0].message.content,
    "streamed": streamed,
    "text": text.choices[0].text,
    "call": [call.function.name, json.loads(call.function.arguments)],
    "structured": json.loads(litellm.completion(**vllm, response_format=Cat).choices[0].message.content),
    "refused": refused,
}
json.dump(told, sys.stdout)
