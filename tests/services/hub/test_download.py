"""Downloads from the hub: needed files only, once, by one process; a refused model downloads no weights; errors
are one line.
"""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.services.hub.conftest import CONFIG, FILES, NAME, WEIGHTS
from tests.services.hub_server import HubServer
from tetrad.services.errors import ModelError, NotFound
from tetrad.services.hub import download
from tetrad.services.hub.cache import find_snapshot
from tetrad.services.hub.download import HubAccess
from tetrad.services.hub.model_files import resolve_model


def refuse(config):
    raise ModelError(f"{config['architectures'][0]} cannot run here.")


@pytest.fixture
def breaking_hub(hub, monkeypatch):
    """Its files break off in the middle; the client keeps what it wrote, and it writes chunks of this size."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    return hub


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def problem_of(name=NAME, **options):
    with pytest.raises(NotFound) as caught:
        resolve_model(name, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_is_needed_is_downloaded_once(hub):
    said, checked = [], []

    path = resolve_model(NAME, report=said.append, check=checked.append)
    again = resolve_model(NAME, report=pytest.fail, check=pytest.fail)

    assert path == again
    assert names_in(path) == sorted(FILES)
    assert checked == [CONFIG]
    assert [line for line in said if line.startswith(f"Downloading {NAME} (186 bytes) from {hub.url} into ")] == said
    assert hub.fetched[0] == "config.json"
    assert sorted(hub.fetched) == sorted(FILES)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_sees_one_bar_of_all_bytes(hub, monkeypatch, is_terminal):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)

    resolve_model(NAME, report=lambda _: None)

    assert ("Downloading: 100%" in stderr.getvalue()) == is_terminal
    assert stderr.getvalue().endswith("\n") == is_terminal
    assert not any(word in stderr.getvalue() for word in ("Fetching", "Reconstruct", "config.json"))


def test_a_model_that_cannot_run_costs_no_download_of_weights(hub):
    for _ in range(2):  # what is left of the first refusal is no model
        with pytest.raises(ModelError, match="LlamaForCausalLM cannot run here"):
            resolve_model(NAME, check=refuse)

    assert hub.fetched == ["config.json"]


def test_a_refused_model_is_fetched_whole_by_those_that_can_run_it(hub):
    with pytest.raises(ModelError):
        resolve_model(NAME, check=refuse)

    path = resolve_model(NAME)

    assert set(WEIGHTS) <= set(names_in(path))


def test_a_snapshot_that_lacks_a_file_is_completed(hub):
    path = resolve_model(NAME)
    (path / WEIGHTS[1]).unlink()

    assert resolve_model(NAME) == path
    assert (path / WEIGHTS[1]).read_bytes() == FILES[WEIGHTS[1]]


def test_a_download_that_breaks_off_resumes_in_the_middle(breaking_hub):
    hub = breaking_hub
    hub.breaks[WEIGHTS[0]] = 1

    path = resolve_model(NAME)

    assert (path / WEIGHTS[0]).read_bytes() == FILES[WEIGHTS[0]]
    assert hub.ranges == [(WEIGHTS[0], len(FILES[WEIGHTS[0]]) // 2 // 4 * 4)]


def test_a_download_that_keeps_breaking_off_is_one_line_and_resumes_later(breaking_hub):
    hub = breaking_hub
    hub.breaks[WEIGHTS[0]] = 99

    assert "broke off or never began" in problem_of()
    hub.breaks.clear()

    assert (resolve_model(NAME) / WEIGHTS[0]).read_bytes() == FILES[WEIGHTS[0]]
    assert hub.ranges[-1][1] > 0


def test_a_tokenizer_comes_without_weights_and_weights_follow(hub):
    path = resolve_model(NAME, with_weights=False)
    fetched = names_in(path)

    assert resolve_model(NAME) == path
    assert fetched == ["config.json", "model.safetensors.index.json", "tokenizer.json"]
    assert set(WEIGHTS) <= set(names_in(path))


def test_a_gguf_file_is_fetched_alone(hub):
    hub.repositories["org/name-GGUF"] = {"a-Q4_K_M.gguf": b"four", "a-Q8_0.gguf": b"eight"}

    path = resolve_model("org/name-GGUF:Q8_0")

    assert path.read_bytes() == b"eight"
    assert hub.fetched == ["a-Q8_0.gguf"]
    assert resolve_model("org/name-GGUF").read_bytes() == b"four"  # the default, although another one is in the cache


def test_a_revision_is_asked_for(hub):
    hub.commits["v2"] = "b" * 40

    path = resolve_model(NAME, revision="v2")

    assert path.name == "b" * 40
    assert resolve_model(NAME, revision="v2", report=pytest.fail) == path


def test_the_cache_is_used_until_a_refresh_asks_the_hub(hub):
    old = resolve_model(NAME)
    hub.commits["main"] = "b" * 40
    hub.repositories[NAME]["tokenizer.json"] = b'{"new": 1}'

    assert resolve_model(NAME) == old
    new = resolve_model(NAME, refresh=True)

    assert (new / "tokenizer.json").read_bytes() == b'{"new": 1}'
    assert resolve_model(NAME) == new
    assert hub.fetched.count(WEIGHTS[0]) == 1


def test_one_of_two_processes_downloads(tmp_path):
    """Worker and tokenizer want the same model at the same time; the second finds it in the cache."""
    program = "import sys; from tetrad.services.hub.model_files import resolve_model as r; print(r(sys.argv[1], report=print))"
    with HubServer({NAME: dict(FILES)}) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        both = [
            subprocess.Popen([sys.executable, "-c", program, NAME], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]

    assert outputs[0][-1] == outputs[1][-1]
    assert sum(line.startswith("Downloading") for lines in outputs for line in lines) == 1
    assert sorted(hub.fetched) == sorted(FILES)


def test_a_process_that_waits_for_another_ones_download_says_so(hub):
    said, waits = [], threading.Event()

    def note(line):
        said.append(line)
        waits.set()

    lock = download.cache_directory() / ".locks" / "models--someone--some-model" / "tetrad.lock"
    with download.locked(lock):
        second = threading.Thread(target=resolve_model, args=(NAME,), kwargs={"report": note})
        second.start()
        assert waits.wait(30)
    second.join()

    assert said[0] == f"Waiting for another process that downloads {NAME}"


def test_free_space_is_checked_before_anything_is_downloaded(hub, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6))

    assert "it needs 244 bytes, but " in (problem := problem_of())
    assert "has 1 MB free: make room, or set HF_HUB_CACHE" in problem
    assert hub.fetched == []


def test_a_disk_that_fills_up_meanwhile_is_one_line(hub, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)

    assert "the disk is full: make room" in problem_of()


@pytest.mark.parametrize(
    ("path", "reason"), [("/proc/x", "No such file or directory: /proc/x"), ("/dev/null/x", "Not a directory: /dev/null/x")]
)
def test_a_directory_that_cannot_be_made_is_not_a_problem_of_the_network(hub, monkeypatch, path, reason):
    of_program = problem_of(access=HubAccess(cache=Path(path)))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", path)

    assert f"the cache cannot be written ({reason}" in of_program
    assert of_program.endswith("set download_dir to a directory that can.")
    assert problem_of() == of_program.replace("download_dir", "HF_HUB_CACHE")


def test_a_gated_repository_needs_a_token(hub, monkeypatch):
    hub.tokens[NAME] = "hf_right"

    assert f"{hub.url}/{NAME} is gated: accept its licence there, then set HF_TOKEN" in problem_of()
    monkeypatch.setenv("HF_TOKEN", "hf_right")

    assert (resolve_model(NAME) / WEIGHTS[0]).is_file()


def test_offline_only_the_cache_counts(hub, monkeypatch):
    path = resolve_model(NAME)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert resolve_model(NAME) == path
    assert "HF_HUB_OFFLINE is set and the cache does not have all of it" in problem_of("someone/other")


def test_without_a_network_the_address_is_named(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")

    assert "the download from http://127.0.0.1:9 broke off or never began" in problem_of()


def test_a_name_that_no_repository_can_have_is_not_a_problem_of_the_network(hub):
    problem = problem_of("someone/my--model")

    assert "no repository of the hub can have it (Cannot have -- or .. in repo_id: 'someone/my--model')" in problem
    assert "network" not in problem


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("someone/nothing", None, "has no repository someone/nothing, or it is private"),
        (NAME, "v9", f"{NAME} has no revision 'v9'"),
        (f"{NAME}:Q4_K_M", None, "it has no .gguf file 'Q4_K_M'"),
    ],
)
def test_what_does_not_exist_is_one_line(hub, name, revision, message):
    problem = problem_of(name, revision=revision)

    assert problem.startswith(f"Model '{name}' cannot be downloaded: ")
    assert message in problem
    assert hub.fetched == []


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_services_refuse_a_quantized_model_before_its_weights_are_downloaded(tmp_path, command):
    config = {**CONFIG, "quantization_config": {"quant_method": "aqlm"}}
    flags = (NAME, "--port", "0") if command == "serve" else ("--model", NAME, "--listen", "127.0.0.1:0")
    with HubServer({NAME: {**FILES, "config.json": json.dumps(config).encode()}}) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        result = subprocess.run(
            [sys.executable, "-m", "tetrad.cli", command, *flags, "--device", "cpu"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )

    assert result.returncode == 78
    assert "The model is quantized as 'aqlm', which is not supported" in result.stderr
    assert hub.fetched == ["config.json"]


def test_a_token_and_a_directory_that_are_given_with_a_model_replace_the_clients(hub, tmp_path):
    hub.tokens[NAME] = "secret"
    given = HubAccess(token="secret", cache=tmp_path / "elsewhere")

    path = resolve_model(NAME, access=given)
    again = resolve_model(NAME, access=given, report=pytest.fail)

    assert path == again
    assert path.is_relative_to(tmp_path / "elsewhere")
    assert names_in(path) == sorted(FILES)
    assert find_snapshot(NAME, None) is None
    assert "accept" in problem_of()
