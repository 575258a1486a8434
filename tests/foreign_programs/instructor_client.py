"""Instructor in seven modes, and a stream of partial forms: `python instructor_client.py URL MODEL` writes JSON.

Run by test_frameworks.py with the Python that has it.
"""

import json
import sys
from typing import Literal

import anthropic
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


Mode = instructor.Mode
MODES = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON, Mode.RESPONSES_TOOLS)
told = {mode.name: fill(mode) for mode in MODES}
claude = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="none"), mode=Mode.ANTHROPIC_TOOLS)
form = claude.chat.completions.create(model=model, messages=question, response_model=City, max_tokens=128, max_retries=0)
told["ANTHROPIC_TOOLS"] = form.model_dump()
own = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=Mode.TOOLS)
partial = own.chat.completions.create_partial(
    model=model, messages=question, response_model=City, temperature=0, max_tokens=128, max_retries=0
)
json.dump({"filled": told, "partial": [form.city for form in partial]}, sys.stdout)
