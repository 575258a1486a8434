"""The progress that `tetrad serve` prints while it starts, and its message when it is ready."""

import shlex
from dataclasses import replace

import pytest

from tetrad.cli.announcement import announcement
from tetrad.cli.startup import compile_kernels, starting_line
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.facts_wire import decode_engine_info
from tetrad.library.engine_args import EngineArgs
from tetrad.services.hub.model_files import CacheSettings
from tetrad.v1 import engine_core_pb2
from tetrad.worker_svc.native import library

ENGINE = decode_engine_info(
    engine_core_pb2.EngineInfo(
        max_model_len=8192,
        num_gpu_blocks=1025,
        block_size=16,
        dtype="float32",
        weights_dtype="Q4_1",
        kv_cache_dtype="int8",
        device="cpu",
        max_num_seqs=256,
    )
)


def frontend(**fields):
    return FrontendSettings(port=8000, served_model_names=("tiny",), **fields)


def test_it_tells_model_device_capacity_and_addresses():
    lines = announcement(frontend(grpc_port=9000), ENGINE, can_chat=True).splitlines()

    assert lines[:7] == [
        "Tetrad serves tiny at http://127.0.0.1:8000/v1. Ctrl-C stops it.",
        "  model     Q4_1 weights, context of 8,192 tokens",
        "  device    cpu, float32 activations",
        "  KV cache  16,384 tokens in int8: 2 requests of full context; up to 256 requests run at a time",
        "  API       http://127.0.0.1:8000/v1, reference at http://127.0.0.1:8000/docs",
        "  gRPC      127.0.0.1:9000",
        "  console   http://127.0.0.1:8000/",
    ]


def test_a_cache_that_holds_no_whole_context_is_said():
    text = announcement(frontend(), replace(ENGINE, num_gpu_blocks=9), can_chat=True)

    assert "128 tokens in int8: less than one request of full context" in text


@pytest.mark.parametrize(("can_chat", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")])
def test_the_request_to_copy_fits_the_model(can_chat, path):
    command = shlex.split(announcement(frontend(), None, can_chat=can_chat).splitlines()[-1])

    assert command[:2] == ["curl", f"http://127.0.0.1:8000{path}"]
    assert '"model": "tiny"' in command[-1]


def test_a_server_on_a_unix_socket_is_announced_by_its_path():
    text = announcement(frontend(uds="/run/tetrad http.sock", grpc_port=9000), None, can_chat=True)

    assert "Tetrad serves tiny at unix:/run/tetrad http.sock. Ctrl-C stops it." in text
    assert "gRPC      127.0.0.1:9000" in text
    command = shlex.split(text.splitlines()[-1])
    assert command[:4] == ["curl", "--unix-socket", "/run/tetrad http.sock", "http://localhost/v1/chat/completions"]


def test_the_request_to_copy_has_a_key_where_one_is_needed():
    assert "Bearer $API_KEY" in announcement(frontend(api_key=("secret",)), None, can_chat=True)
    assert "secret" not in announcement(frontend(api_key=("secret",)), None, can_chat=True)


def test_it_says_that_kernels_are_compiled_before_it_compiles_them_once(smollm2, tmp_path, monkeypatch):
    settings = EngineArgs(str(smollm2), device="cpu").stack_settings()
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library, "compile_library", lambda target, directory: happened.append("compiled"))
    happened = []

    compile_kernels(settings, happened.append)

    assert happened[0].startswith("Compiling the kernels for this processor (")
    assert happened[1:] == ["compiled"]
    kept = CacheSettings().directory() / "native" / library.library_name(library.best_target())
    kept.parent.mkdir(parents=True)
    kept.touch()
    compile_kernels(settings, pytest.fail)


def test_the_lack_of_a_compiler_is_said(smollm2, tmp_path, monkeypatch):
    settings = EngineArgs(str(smollm2), device="cpu").stack_settings()
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_PREBUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []

    compile_kernels(settings, said.append)

    [line] = said
    assert line.startswith("NO COMPILED KERNELS: decoding on this CPU will be about 8 times slower. Reason: there is no C++")


def test_a_simulated_device_needs_no_kernels(smollm2, tmp_path, monkeypatch):
    settings = EngineArgs(str(smollm2), device="sim").stack_settings()
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path))

    compile_kernels(settings, pytest.fail)


@pytest.mark.parametrize(("device", "line"), [("sim", "with a simulated device"), ("cpu", "loading {model} (94 MiB)")])
def test_it_says_what_it_loads(smollm2, device, line):
    settings = EngineArgs(str(smollm2), device=device).stack_settings()

    assert starting_line(settings) == f"Starting the services, {line.format(model=smollm2)}"
