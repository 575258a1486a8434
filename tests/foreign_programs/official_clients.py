"""OpenAI's and Anthropic's own clients, with their users' first examples: `python official_clients.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has them.
"""

import json
import sys

import anthropic
import openai

url, model = sys.argv[1:]
question = [{"role": "user", "content": "Name the capital of France."}]
chat = {
    "model": model,
    "messages": question,
    "max_tokens": 64,
    "extra_body": {"temperature": 0},
}  # `anthropic` 2 has no such field
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}

own = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
weather = {"name": "get_weather", "description": "Weather of a city.", "input_schema": schema}
called = claude.messages.create(**chat, tools=[weather], tool_choice={"type": "any", "disable_parallel_tool_use": True})
[used] = [block for block in called.content if block.type == "tool_use"]
with claude.messages.stream(**chat) as stream:
    claude_stream = list(stream.text_stream)
chunks = own.chat.completions.create(**chat, stream=True)
told = {
    "openai": own.chat.completions.create(**chat).choices[0].message.content,
    "openai_stream": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
    "openai_response": own.responses.create(model=model, input=question, max_output_tokens=64, temperature=0).output_text,
    "anthropic": claude.messages.create(**chat).content[0].text,
    "anthropic_stream": claude_stream,
    "anthropic_call": [used.name, used.input, called.stop_reason],
}
json.dump(told, sys.stdout)
