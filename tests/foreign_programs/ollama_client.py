"""Ollama's Python client, with its users' first examples: `python ollama_client.py URL MODEL` writes JSON.

Run by test_ollama.py with the Python that has it.
"""

import asyncio
import json
import sys

import ollama

url, model = sys.argv[1:]
client = ollama.Client(host=url)
options = {"temperature": 0, "num_predict": 64}
question = [{"role": "user", "content": "Name the capital of France."}]


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: its name.
    """
    return f"It rains in {city}."


async def stream_chat() -> list[str]:
    """Return the chunks of a chat by the asynchronous client."""
    stream = await ollama.AsyncClient(host=url).chat(model=model, messages=question, options=options, stream=True)
    return [chunk.message.content or "" async for chunk in stream]


schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
generated = client.generate(model=model, prompt="Name the capital of France.", options=options)
called = client.chat(
    model=model, messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[get_weather], options=options
)
try:
    client.generate(model="other", prompt="hi")
except ollama.ResponseError as error:
    refused = [error.status_code, error.error]
told = {
    "generated": generated.response,
    "counts": [generated.prompt_eval_count, generated.eval_count, generated.total_duration],
    "generated_stream": [each.response for each in client.generate(model=model, prompt="Hi", stream=True, options=options)],
    "chatted": client.chat(model=model, messages=question, options=options).message.content,
    "chat_stream": asyncio.run(stream_chat()),
    "formed": client.chat(model=model, messages=question, format=schema, options=options).message.content,
    "called": called.message.model_dump(),
    "refused": refused,
    "listed": [each.model for each in client.list().models],
    "running": [each.context_length for each in client.ps().models],
    "shown": client.show(model).capabilities,
}
json.dump(told, sys.stdout)
