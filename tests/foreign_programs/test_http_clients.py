"""Third-party HTTP clients: LangChain's class for OpenAI, and the load generator aiperf as in docs/gateways.md."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.foreign_programs.page import MODEL, PAGE, TOKENIZER, command_of

HTTP = "http://127.0.0.1:8000"


@pytest.fixture
def python(foreign_bin):
    return foreign_bin / "python"


def test_langchain_asks_streams_calls_a_tool_and_fills_a_form(python, model_stack, tokenizer_directory):
    script = Path(__file__).with_name("langchain_client.py")
    call = [python, script, model_stack.url, str(tokenizer_directory)]

    ran = subprocess.run(call, capture_output=True, text=True, timeout=180)

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert "Paris" in told["invoked"]
    assert "".join(told["streamed"]) == told["invoked"]
    assert len(told["streamed"]) > told["usage"] / 2
    assert told["batched"] == [told["invoked"]] * 3
    assert told["call"][0] == "get_weather" and told["call"][1]["city"] in ("Paris", "Oslo")
    assert told["answered"]
    assert told["structured"]["name"] in ("Tom", "Kit") and told["structured"]["age"] in (1, 2, 3)


def test_the_page_s_example_of_langchain_runs(python, model_stack, tokenizer_directory):
    example = PAGE.block("ChatOpenAI", language="python")
    program = example.replace(HTTP, model_stack.url).replace(MODEL, str(tokenizer_directory))

    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60)

    assert "Paris" in ran.stdout, ran.stderr


def test_aiperf_finishes_without_an_error(foreign_bin, model_stack, start_sim, tokenizer_directory, tmp_path):
    command = command_of("aiperf profile").replace(HTTP, start_sim().url).replace(TOKENIZER, str(tokenizer_directory))
    environment = os.environ | {"PATH": f"{foreign_bin}:{os.environ['PATH']}"}

    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "aiperf/profile_export_aiperf.json").read_text())
    assert (report["request_count"]["avg"], report["error_summary"], report["was_cancelled"]) == (40, [], False)
