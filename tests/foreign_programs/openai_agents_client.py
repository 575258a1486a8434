"""OpenAI's Agents SDK: an agent with a tool, over chats and responses. `python openai_agents_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it.
"""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolCallItem,
    ToolCallOutputItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, name = sys.argv[1:]
set_tracing_disabled(True)


@function_tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Weather of a city."""
    return f"It rains in {city}."


async def run(api: type[OpenAIChatCompletionsModel] | type[OpenAIResponsesModel]) -> dict[str, object]:
    """Return what one agent did, and what it answers to the same question in a stream."""
    model = api(model=name, openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
    settings = ModelSettings(temperature=0, max_tokens=64, tool_choice="required", parallel_tool_calls=False)
    agent = Agent(name="Weather", instructions="Use the tool.", model=model, tools=[get_weather], model_settings=settings)
    question = "What is the weather in Paris?"
    ended = await Runner.run(agent, question, max_turns=3)
    streaming = Runner.run_streamed(agent, question, max_turns=3)
    events = [event.type async for event in streaming.stream_events()]
    items = ended.new_items
    calls = [item.raw_item for item in items if isinstance(item, ToolCallItem)]
    return {
        "calls": [[call.name, json.loads(call.arguments)] for call in calls],
        "outputs": [item.output for item in items if isinstance(item, ToolCallOutputItem)],
        "answered": ended.final_output,
        "streamed": streaming.final_output,
        "events": len(events),
    }


async def run_both() -> dict[str, object]:
    """Return both APIs' runs."""
    return {"chat": await run(OpenAIChatCompletionsModel), "responses": await run(OpenAIResponsesModel)}


json.dump(asyncio.run(run_both()), sys.stdout)
