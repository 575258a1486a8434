"""Ollama's published Python client, unmodified, against the real model."""

import json
import subprocess
from pathlib import Path


def test_ollama_s_client_generates_chats_streams_and_lists(foreign_bin, model_stack, tokenizer_directory):
    script = Path(__file__).with_name("ollama_client.py")
    model = str(tokenizer_directory)

    ran = subprocess.run(
        [foreign_bin / "python", script, model_stack.url, model], capture_output=True, text=True, timeout=180, check=False
    )

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert "Paris" in told["generated"]
    assert told["generated"] == told["chatted"] == "".join(told["chat_stream"])
    assert len(told["chat_stream"]) > 3
    assert len(told["generated_stream"]) > 3
    assert all(count > 0 for count in told["counts"])
    assert json.loads(told["formed"])["city"] in ("Paris", "Oslo")
    assert told["called"]["role"] == "assistant"
    assert told["refused"] == [404, "The model `other` does not exist."]
    assert told["listed"] == [model]
    assert told["running"] == [2048]
    assert "completion" in told["shown"]
