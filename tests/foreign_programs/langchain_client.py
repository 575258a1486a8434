"""LangChain's class for OpenAI's API, with its users' first examples: `python langchain_client.py URL MODEL` writes JSON.

Run by test_http_clients.py with the Python that has LangChain.
"""

import json
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Cat(BaseModel):
    """A cat."""

    name: Literal["Tom", "Kit"]
    age: Literal[1, 2, 3]


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Weather of a city."""
    return f"It rains in {city}."


url, model = sys.argv[1:]
llm = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=64)
question = "Name the capital of France."
invoked = llm.invoke(question)
asked = [HumanMessage("What is the weather in Paris? Use the tool.")]
called = llm.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False).invoke(asked)
[call] = called.tool_calls
result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
told = {
    "invoked": invoked.content,
    "usage": invoked.usage_metadata["output_tokens"],
    "streamed": [chunk.content for chunk in llm.stream(question)],
    "batched": [answer.content for answer in llm.batch([question] * 3)],
    "call": [call["name"], call["args"]],
    "answered": llm.invoke([*asked, called, result]).content,
    "structured": llm.with_structured_output(Cat, method="json_schema").invoke("Describe a cat.").model_dump(),
}
json.dump(told, sys.stdout)
