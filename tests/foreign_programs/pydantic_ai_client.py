"""Pydantic AI: structured output, a tool call, a stream: `python pydantic_ai_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it.
"""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelSettings, NativeOutput, RunContext
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Cat(BaseModel):
    """A cat."""

    name: Literal["Tom", "Kit"]
    age: Literal[1, 2, 3]


url, name = sys.argv[1:]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
settings: ModelSettings = {"temperature": 0, "max_tokens": 64}
question = "Name the capital of France."
plain = Agent(model, model_settings=settings)


def weather_first(context: RunContext[None]) -> ModelSettings:
    """Settings that ask for the tool in the first step alone: a small model calls none of its own accord."""
    choice = ["get_weather"] if context.run_step <= 1 else "none"
    return {**settings, "tool_choice": choice, "parallel_tool_calls": False}


async def stream() -> list[str]:
    """Return the pieces of a streamed answer."""
    async with plain.run_stream(question) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


def call_a_tool() -> tuple[list[object], str]:
    """Return the calls of the tool, and the answer that the run ends with."""
    agent = Agent(model, model_settings=weather_first)

    @agent.tool_plain
    def get_weather(city: Literal["Paris", "Oslo"]) -> str:
        """Weather of a city."""
        return f"It rains in {city}."

    ended = agent.run_sync("What is the weather in Paris?")
    parts = [part for message in ended.all_messages() for part in message.parts if isinstance(part, ToolCallPart)]
    return [[part.tool_name, part.args_as_dict()] for part in parts], ended.output


def describe(output_type: type[Cat] | NativeOutput[Cat]) -> dict[str, object]:
    """Return a cat that the model described in this way."""
    agent = Agent(model, output_type=output_type, model_settings=settings)
    return agent.run_sync("Describe a cat.").output.model_dump()


calls, answered = call_a_tool()
ran = plain.run_sync(question)
told = {
    "ran": ran.output,
    "tokens": ran.usage.output_tokens,
    "streamed": asyncio.run(stream()),
    "by_tool": describe(Cat),
    "by_schema": describe(NativeOutput(Cat)),
    "calls": calls,
    "answered": answered,
}
json.dump(told, sys.stdout)
