"""docs/speech.md: its program and its command, against a server with a tiny model."""

import re
import subprocess
import sys

import pytest

from tests.documents import Page
from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.speech_reference import save_talkative_whisper
from tests.sounds import sound

PAGE = Page.of("docs/speech.md")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("page")
    save_talkative_whisper(path / "model")
    (path / "speech.mp3").write_bytes(sound(3.0, form="mp3"))
    return path


@pytest.fixture(scope="module")
def url(directory, start_module_server):
    flags = ("--model", str(directory / "model"), "--served-model-name", "whisper", "--device", "cpu", *ONE_TOKENIZER)
    return start_module_server(*flags).url


def run(directory, url, block, *command):
    program = block.replace("http://127.0.0.1:8000", url)
    ran = subprocess.run([*command, program], cwd=directory, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_openais_client_prints_the_text(directory, url):
    assert run(directory, url, PAGE.block("OpenAI(", language="python"), sys.executable, "-c").strip()


def test_curl_gets_subtitles(directory, url):
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:", run(directory, url, PAGE.block("curl"), "bash", "-c"))


def test_the_command_writes_subtitles(directory, url):
    block = PAGE.block("tetrad transcribe").replace(
        "tetrad transcribe", f"{sys.executable} -m tetrad.cli transcribe --url {url}"
    )
    run(directory, url, block, "bash", "-c")

    assert (directory / "speech.vtt").read_text().startswith("WEBVTT\n")


@pytest.mark.exhaustive(short="test_the_command_writes_subtitles")
def test_the_command_starts_a_server_for_a_model(directory, url):
    program = f"{sys.executable} -m tetrad.cli transcribe speech.mp3 --language en"
    by_own = run(directory, url, f"{program} --model {directory / 'model'} --device cpu", "bash", "-c")

    assert by_own == run(directory, url, f"{program} --url {url}", "bash", "-c")
