"""Programs made for vLLM run with the import changed. They are in vllm_scripts/, one for each page of vLLM's documentation.

All of them use one simulated stack: an LLM's own stack takes seconds to start, and is the same for each.
"""

import runpy
import sys
from pathlib import Path

import pytest

from tests.vision_files import save_vision_model
from tests.worker_svc.pooling.checkpoints import ENCODERS, save_encoder
from tetrad.library import async_llm as async_llm_module
from tetrad.library import llm_arguments, llm_engine
from tetrad.library.engine_args import EngineArgs
from tetrad.library.event_loop_thread import EventLoopThread
from tetrad.library.llm_services import LocalServices

SCRIPTS = Path(__file__).parent / "vllm_scripts"


class SharedServices:
    """Services that were started once; ends nothing. Stands in for LocalServices."""

    def __init__(self, settings):
        self._settings = settings

    async def start(self):
        return self._settings

    async def close(self):
        pass

    def abandon(self):
        pass


@pytest.fixture(scope="module")
def settings(smollm2):
    loop = EventLoopThread()
    services = LocalServices(EngineArgs(str(smollm2), device="sim", max_model_len=512))
    yield loop.run(services.start())
    loop.run(services.close())
    loop.close()


@pytest.fixture
def printed(settings, monkeypatch, capsys):
    """Return a function that runs a script and returns what it prints."""
    for module in (llm_arguments, llm_engine, async_llm_module):
        monkeypatch.setattr(module, "LocalServices", lambda args: SharedServices(settings))

    def run(name):
        monkeypatch.setattr(sys, "argv", [name])
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_quick_start(printed):
    assert printed("quickstart.py").count("Generated text: ") == 4


def test_flags_of_every_engine_argument(printed):
    assert "Hello, my name is" in printed("basic_generate.py")


def test_chat(printed):
    out = printed("basic_chat.py")

    assert out.count("How can I assist you today?") == 6
    assert "user: Write an essay\non higher education." in out


def test_llm_engine(printed):
    out = printed("llm_engine_example.py")

    assert out.count("finished=True") == 3
    assert "To be or not to be," in out


def test_async_llm(printed):
    assert printed("async_llm_streaming.py").count("Generation complete!") == 2


def test_pausing(printed):
    assert printed("pause_resume.py") == "paused: True\ntokens: 30\n"


def test_structured_outputs(printed):
    out = printed("structured_outputs.py")

    assert "choice: Positive\n" in out or "choice: Negative\n" in out
    assert "grammar: SELECT col_" in out
    assert "@" in out.split("regex: ")[1].split("json: ")[0]


def test_structured_outputs_as_older_versions_have_them(printed):
    out = printed("structured_outputs_older.py")

    assert "guided_decoding: Positive\n" in out or "guided_decoding: Negative\n" in out
    assert "guided_options_request: Yes\n" in out or "guided_options_request: No\n" in out


def test_beam_search(printed):
    lines = printed("beam_search.py").splitlines()

    assert [line.split()[0] for line in lines if line[:1].isdigit()].count("8") == 3


def test_metrics(printed):
    out = printed("metrics.py")

    assert "tetrad:num_requests_running (gauge) = " in out
    assert "tetrad:prompt_tokens (counter) = " in out
    assert "tetrad:time_to_first_token_seconds (histogram) sum = " in out


def test_prefix_caching(printed):
    # Whether the texts are the same is the real model's to show: tests/e2e/test_parity.py. A simulated one draws them.
    assert "cached: [True, True, True]\n" in printed("prefix_caching.py")


def test_prompts_as_older_versions_have_them(printed):
    lines = printed("older_prompts.py").splitlines()

    assert lines[:4] == ["2 None 3", "3 None 3", "2 None 3", "2 'The capital' 3"]
    assert [line.split(" ", 1)[1] for line in lines[4:6]] == ["'The capital' 3", "'of France' 3"]
    assert lines[6] == "ValueError: Either prompts or prompt_token_ids must be provided."
    assert lines[7].startswith("512 ")


@pytest.mark.usefixtures("services_here")
def test_embeddings(tmp_path, monkeypatch, capsys):
    """With an encoder, and services of its own, in this process."""
    save_encoder(tmp_path, ENCODERS["bert"])

    def printed(name):
        (tmp_path / name).write_text((SCRIPTS / name).read_text().replace("intfloat/e5-small", str(tmp_path)))
        monkeypatch.setattr(sys, "argv", [name])
        runpy.run_path(str(tmp_path / name), run_name="__main__")
        return capsys.readouterr().out

    lines = printed("embed.py").splitlines()

    assert [line.split()[0] for line in lines[:2]] == ["32", "32"]
    assert lines[3].startswith("score: ")
    assert lines[4] == "ValueError: This model does not generate: it pools. Use /v1/embeddings."


@pytest.mark.usefixtures("services_here")
def test_images(tmp_path, monkeypatch, capsys):
    """With a model that reads them, and services of its own, in this process."""
    save_vision_model(tmp_path / "model", "llava")
    monkeypatch.setenv("TETRAD_WORKER_KV_CACHE_MEMORY_GIB", "0.05")

    def printed(name):
        model = str(tmp_path / "model")
        (tmp_path / name).write_text((SCRIPTS / name).read_text().replace("llava-hf/llava-1.5-7b-hf", model))
        monkeypatch.setattr(sys, "argv", [name])
        runpy.run_path(str(tmp_path / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    lines = printed("vision_language.py")

    assert [line.split(":")[0] for line in lines] == ["generated", "generated", "chat", "ValueError"]
    assert lines[3].startswith("ValueError: At most 2 image(s) may be provided in one prompt.")


def test_every_script_is_run():
    tested = Path(__file__).read_text()

    assert [path.name for path in SCRIPTS.glob("*.py") if f'printed("{path.name}")' not in tested] == []
