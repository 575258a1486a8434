"""OpenAI's and Anthropic's clients, and frameworks over them, unmodified, against the real model."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.foreign_programs.conftest import environment_of
from tests.foreign_programs.page import MODEL, PAGE

CITIES, NAMES, AGES = ("Paris", "Oslo"), ("Tom", "Kit"), (1, 2, 3)


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python that has the frameworks."""
    return environment_of(Path(__file__).with_name("frameworks_requirements.txt")) / "python"


@pytest.fixture(scope="module")
def drive(python, model_stack, tokenizer_directory) -> Callable[[str], dict[str, Any]]:
    """Return a runner of a client's script: what it wrote about the stack."""

    def run(script: str) -> dict[str, Any]:
        call = [python, Path(__file__).with_name(script), model_stack.url, str(tokenizer_directory)]
        ran = subprocess.run(call, capture_output=True, text=True, timeout=180, check=False)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def test_the_official_clients_ask_stream_and_call_a_tool(drive):
    told = drive("official_clients.py")

    assert "Paris" in told["openai"]
    assert told["openai"] == told["openai_response"] == told["anthropic"]
    for stream in ("openai_stream", "anthropic_stream"):
        assert "".join(told[stream]) == told["openai"] and len(told[stream]) > 3
    name, arguments, stop_reason = told["anthropic_call"]
    assert (name, stop_reason) == ("get_weather", "tool_use") and arguments["city"] in CITIES


def test_litellm_asks_streams_calls_a_tool_and_fills_a_form(drive):
    told = drive("litellm_client.py")

    assert "Paris" in told["completed"] and told["usage"] > 0
    assert told["completed"] == told["as_openai"] == told["awaited"] == "".join(told["streamed"])
    assert len(told["streamed"]) > told["usage"] / 2
    assert told["text"]
    assert told["call"][0] == "get_weather" and told["call"][1]["city"] in CITIES
    assert told["structured"]["name"] in NAMES and told["structured"]["age"] in AGES
    assert "The model `other` does not exist." in told["refused"]


def test_instructor_fills_a_form_in_each_mode(drive):
    told = drive("instructor_client.py")

    assert set(told["filled"]) == {
        "TOOLS",
        "TOOLS_STRICT",
        "JSON",
        "JSON_SCHEMA",
        "MD_JSON",
        "RESPONSES_TOOLS",
        "ANTHROPIC_TOOLS",
    }
    assert all(form["city"] in CITIES for form in told["filled"].values())
    assert told["partial"][0] is None and told["partial"][-1] in CITIES


def test_pydantic_ai_answers_streams_calls_a_tool_and_fills_a_form(drive):
    told = drive("pydantic_ai_client.py")

    assert "Paris" in told["ran"] and told["tokens"] > 0
    assert "".join(told["streamed"]) == told["ran"] and len(told["streamed"]) > 3
    for form in (told["by_tool"], told["by_schema"]):
        assert form["name"] in NAMES and form["age"] in AGES
    [[name, arguments]] = told["calls"]
    assert name == "get_weather" and arguments["city"] in CITIES
    assert told["answered"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_of_openai_s_sdk_uses_its_tool_and_answers(agents, api):
    ran = agents[api]

    [[name, arguments]] = ran["calls"]
    assert name == "get_weather"
    assert ran["outputs"] == [f"It rains in {arguments['city']}."]
    assert ran["answered"] and ran["streamed"] == ran["answered"]
    assert ran["events"] > 6


@pytest.fixture(scope="module")
def agents(drive):
    return drive("openai_agents_client.py")


def test_llama_index_completes_chats_streams_and_calls_a_tool(drive):
    told = drive("llama_index_client.py")

    assert told["completed"] and told["completed"] == "".join(told["complete_stream"])
    assert "Paris" in told["chatted"] and told["chatted"] == "".join(told["chat_stream"])
    assert len(told["chat_stream"]) > 3
    [[name, arguments]] = told["calls"]
    assert name == "get_weather" and arguments["city"] in CITIES


def test_the_page_s_example_of_the_frameworks_runs(python, model_stack, tokenizer_directory):
    example = PAGE.block("hosted_vllm", language="python")
    program = example.replace("http://127.0.0.1:8000", model_stack.url).replace(MODEL, str(tokenizer_directory))
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    ran = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert "Paris" in ran.stdout, ran.stderr
