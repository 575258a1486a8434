"""OpenAI's own client of the Responses API, and tools for it."""

import openai

from tests.frontend.turns import WEATHER

TOOLS = [
    {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": WEATHER},
    {"type": "function", "name": "get_time"},
]


def client_of(frontend):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{frontend.port}/v1", api_key="none", max_retries=0)
