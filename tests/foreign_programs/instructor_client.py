"""Instructor in four modes: `python instructor_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it.
"""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "Oslo"]


url, model = sys.argv[1:]
# JSON and MD_JSON leave the form to the model; an example shows it to a small one.
question = [
    {"role": "user", "content": "Name the capital of Norway."},
    {"role": "assistant", "content": '{"city": "Oslo"}'},
    {"role": "user", "content": "Name the capital of France."},
]


def fill(mode: instructor.Mode) -> dict[str, object]:
    """Return the form that the model filled in this mode."""
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
    return client.chat.completions.create(
        model=model, messages=question, response_model=City, temperature=0, max_tokens=128, max_retries=0
    ).model_dump()


told = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.MD_JSON):
    told[mode.name] = fill(mode)
json.dump(told, sys.stdout)
