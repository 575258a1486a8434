"""`tetrad pull`, `list` and `show`, and a model that is served by its Hugging Face id."""

import json
import re
from pathlib import Path

import pytest

from tests.documents import Page
from tests.e2e.tiny_model import save_tiny_model
from tests.services.hub_server import HubServer, use_hub
from tests.vision_files import save_vision_model
from tests.whisper_files import save_whisper
from tetrad import LLM, SamplingParams
from tetrad.cli import main
from tetrad.cli.models.memory import kv_need
from tetrad.cli.models.texts import binary_size, count, decimal_size, table
from tetrad.worker_svc.checkpoint.model_config import read_model_config

NAME = "someone/tiny"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def config(files):
    return json.loads(files["config.json"])


@pytest.fixture
def hub(files, tmp_path, monkeypatch):
    with HubServer({NAME: dict(files)}) as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        yield hub


@pytest.fixture
def tetrad(capsys, tmp_path, monkeypatch):
    """Return what runs a command line in this process, with an empty cache: -> exit code, stdout, stderr."""
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path / "tetrad"))

    def run(*arguments):
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_pull_downloads_and_prints_the_path(hub, tetrad):
    code, path, said = tetrad("pull", NAME)

    assert code == 0
    assert path.strip().endswith("snapshots/" + "a" * 40)
    assert f"Downloading {NAME} (" in said


def test_pull_again_says_that_nothing_was_to_be_done(hub, tetrad):
    tetrad("pull", NAME)

    assert tetrad("pull", NAME)[2].splitlines()[-1] == f"{NAME} is up to date"


def test_pull_of_a_model_on_this_machine_says_that_it_needs_no_download(tetrad, tmp_path, smollm2):
    model = save_tiny_model(tmp_path)

    assert tetrad("pull", str(model)) == (0, f"{model}\n", f"{model} is on this machine: nothing to download\n")
    assert tetrad("pull", str(smollm2))[0] == 0


@pytest.mark.parametrize(
    ("lost", "reason"),
    [("config.json", "has no config.json"), ("model.safetensors", "lacks any *.safetensors or pytorch_model*.bin file")],
)
def test_pull_of_a_directory_without_a_checkpoint_is_one_line(tetrad, tmp_path, lost, reason):
    (save_tiny_model(tmp_path) / lost).unlink()

    assert tetrad("pull", str(tmp_path)) == (78, "", f"tetrad: {tmp_path} {reason}.\n")


def test_pull_of_a_model_that_cannot_run_is_one_line(hub, tetrad, config):
    hub.repositories[NAME]["config.json"] = json.dumps(config | {"architectures": ["StrangeForCausalLM"]}).encode()

    code, _, said = tetrad("pull", NAME)

    assert code == 78
    assert said.startswith("tetrad: Architecture StrangeForCausalLM is not supported")
    assert hub.fetched == ["config.json"]


def test_list_of_nothing_says_how_to_get_a_model(hub, tetrad):
    assert tetrad("list") == (
        0,
        "No model is cached. `tetrad pull MODEL` downloads one; `tetrad serve MODEL` does so by itself.\n",
        "",
    )


def test_list_tells_what_runs_here_and_why_the_rest_does_not(hub, tetrad, files, config):
    hub.repositories["someone/strange"] = hub.repositories[NAME]
    tetrad("pull", NAME)
    strange = Path(tetrad("pull", "someone/strange")[1].strip())
    (strange / "config.json").write_text(json.dumps(config | {"architectures": ["StrangeForCausalLM"]}))

    lines = tetrad("list", "--device", "cpu")[1].splitlines()
    [strange, tiny] = json.loads(tetrad("list", "--device", "cpu", "--json")[1])

    assert lines[0].split() == ["MODEL", "SIZE", "FAMILY", "RUNS", "HERE"]
    assert "Strange  no: Architecture StrangeForCausalLM is not supported" in lines[1]
    assert lines[2].startswith(NAME)
    assert lines[2].endswith("Llama    yes")
    assert (strange["runs_here"], tiny["runs_here"], tiny["family"]) == (False, True, "Llama")
    assert tiny["size_bytes"] == sum(map(len, files.values()))


def test_list_ignores_a_directory_that_is_no_repository(hub, tetrad, tmp_path):
    tetrad("pull", NAME)
    before = tetrad("list")
    snapshot = tmp_path / "hub" / "models--my--own--notes" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")

    assert tetrad("list") == before


def test_list_says_how_to_resume_an_incomplete_download(hub, tetrad):
    tetrad("pull", NAME)
    [model] = json.loads(tetrad("list", "--json")[1])
    (Path(model["path"]) / "model.safetensors").unlink()

    assert f"`tetrad pull {NAME}` resumes it" in tetrad("list")[1]


def test_show_of_a_model_that_is_not_downloaded_fetches_its_config_alone(hub, tetrad):
    hub.facts = {"safetensors": {"total": 1_234_567, "parameters": {"F32": 1_234_567}}}

    code, text, _ = tetrad("show", NAME)

    assert code == 0
    assert "not downloaded (" in text
    assert "1 million" in text
    assert hub.fetched == ["config.json"]


def test_show_of_a_cached_model_counts_its_parameters(hub, tetrad, config):
    tetrad("pull", NAME)

    shown = json.loads(tetrad("show", NAME, "--json")[1])

    assert shown["num_parameters"] * 4 == shown["weights_bytes"]["float32"]
    assert shown["config"] == config
    assert not shown["problem"]


def test_show_says_whether_a_model_reads_images(tetrad, tmp_path):
    save_vision_model(tmp_path / "model", "llava")

    shown = json.loads(tetrad("show", str(tmp_path / "model"), "--json")[1])
    text = tetrad("show", str(tmp_path / "model"))[1]

    assert shown["input_modalities"] == ["text", "image"]
    assert re.search(r"^prompts +texts and images$", text, re.MULTILINE)


def test_show_of_a_model_with_an_encoder_has_the_memory_of_its_output(tetrad, tmp_path):
    save_whisper(tmp_path / "model", num_seconds=1)

    shown = json.loads(tetrad("show", str(tmp_path / "model"), "--json")[1])
    text = tetrad("show", str(tmp_path / "model"), "--device", "cpu")[1]

    assert (shown["input_modalities"], shown["encoded_bytes"]) == (["text", "audio"], 2 * 3 * 32 * 50 * 4)
    assert "38 KiB for the audio of a request" in text


def test_show_of_a_gguf_file_needs_no_hub(tetrad, smollm2):
    text = tetrad("show", str(smollm2))[1]

    assert "135 million" in text
    assert "longest context  8192" in text


@pytest.mark.parametrize("name", ["~nobody-here/m", "a" * 300])
def test_show_of_a_path_that_cannot_be_is_one_line(tetrad, name):
    code, _, errors = tetrad("show", name)

    assert code == 78
    assert name in errors
    assert errors.count("\n") == 1


def test_show_of_a_gguf_file_that_is_not_downloaded_is_one_line(hub, tetrad):
    hub.repositories["someone/gguf"] = {"a-Q8_0.gguf": b"GGUF"}

    assert tetrad("show", "someone/gguf:Q8_0")[2].endswith("`tetrad pull someone/gguf:Q8_0` first.\n")


def test_keys_and_values_of_a_context(smollm2):
    """SmolLM2: 30 layers with 3 heads of 64 for keys and as many for values."""
    need = kv_need(read_model_config(smollm2))

    per_token = 2 * 30 * 3 * 64
    assert list(need.by_context) == [2048, 8192]
    assert need.by_context[2048] == {
        "float32": 2048 * per_token * 4,
        "float16": 2048 * per_token * 2,
        "int8": 2048 * per_token * 34 // 32,
    }


def test_the_commands_of_the_page(hub, tetrad):
    hub.repositories["Qwen/Qwen2.5-0.5B-Instruct"] = hub.repositories[NAME]

    for line in Page.of("docs/getting-models.md").block("tetrad pull").splitlines():
        code, said, _ = tetrad(*line.split()[1:])

        assert code == 0
        assert "Qwen" in said


def test_texts():
    assert [decimal_size(each) for each in (0, 98e6, 1.23e9)] == ["0 bytes", "98 MB", "1.2 GB"]
    assert binary_size(3 << 29) == "1.5 GiB"
    assert [count(each) for each in (999, 134_515_008, 7_240_000_000)] == ["999", "135 million", "7.2 billion"]
    assert table([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]


def test_a_program_serves_a_hugging_face_id_and_a_revision(hub):
    hub.commits["v2"] = "b" * 40

    with LLM(NAME, revision="v2", device="cpu", threads=1, max_model_len=64) as llm:
        [output] = llm.generate("The cat", SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)

    assert len(output.outputs[0].token_ids) == 4
    assert "model.safetensors" in hub.fetched


def test_a_repository_of_pytorch_files_is_pulled_and_listed(hub, tetrad, files):
    weights = {"pytorch_model.bin": b"0" * 1000}
    hub.repositories["someone/old"] = {name: data for name, data in files.items() if name != "model.safetensors"} | weights

    assert json.loads(tetrad("show", "someone/old", "--json")[1])["weights_bytes"]["as stored"] == 1000
    tetrad("pull", "someone/old")

    [model] = json.loads(tetrad("list", "--json")[1])
    assert model["runs_here"]
    assert json.loads(tetrad("show", "someone/old", "--json")[1])["num_parameters"] is None
