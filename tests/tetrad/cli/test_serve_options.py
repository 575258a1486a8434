"""The options of `tetrad serve`: models, addresses, config files, further models."""

import argparse
import socket
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tests.tetrad.cli.commands import assert_one_line, tetrad
from tetrad.cli.also import add_also_option, also_settings
from tetrad.cli.config_file import add_config_options, config_text, parse_with_config
from tetrad.cli.options import add_engine_options, engine_args, new_parser
from tetrad.cli.server_options import add_server_options, check_auto_tool_choice, server_fields
from tetrad.frontend.config import FrontendSettings
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest
from tetrad.services.hub.model_files import DEFAULT_MODEL


def test_a_kv_cache_that_the_device_cannot_hold_is_refused_with_both_figures():
    result = tetrad("serve", "--port", "0", "--device", "sim", "--kv-cache-memory-gib", "500")

    assert "kv_cache_memory_gib 500 does not fit: 4.0 GiB can be had" in result.stderr
    assert result.returncode == 78


def test_a_model_that_does_not_exist_is_one_line():
    result = tetrad("serve", "/no/such/model.gguf", "--port", "0")

    assert_one_line(result, "/no/such/model.gguf", "smollm2-135m-instruct")
    assert result.returncode == 78


@pytest.mark.parametrize(
    ("given", "model"), [((), DEFAULT_MODEL), (("m",), "m"), (("--model", "m"), "m"), (("m", "--model", "m"), "m")]
)
def test_the_model_is_an_argument_or_a_flag(given, model):
    parser = new_parser("serve", "")
    add_engine_options(parser)

    assert engine_args(parser.parse_args([*given])).model == model


def test_two_models_are_one_line():
    assert_one_line(tetrad("serve", "one", "--model", "two"), "one and two")


@pytest.mark.parametrize(
    ("flags", "line", "token"),
    [
        ((), "", None),
        (("--hf-token", "hf_abc"), "hf-token: hf_abc", "hf_abc"),
        (("--hf-token=hf_abc",), "hf-token: hf_abc", "hf_abc"),
        (("--hf-token",), "hf-token: true", True),
        (("--no-hf-token",), "hf-token: false", False),
    ],
)
def test_a_token_is_a_text_or_a_switch(flags, line, token, tmp_path):
    parser = new_parser("serve", "")
    add_config_options(parser)
    add_engine_options(parser)
    (tmp_path / "tetrad.yaml").write_text(line)

    by_flags = engine_args(parse_with_config(parser, ["m", *flags]))
    by_file = engine_args(parse_with_config(parser, ["m", "--config", str(tmp_path / "tetrad.yaml")]))

    assert (by_flags.model, by_flags.hf_token) == (by_file.model, by_file.hf_token) == ("m", token)


def test_overrides_of_the_config_are_a_json_object():
    parser = new_parser("serve", "")
    add_engine_options(parser)

    assert engine_args(parser.parse_args(["--hf-overrides", '{"rope_theta": 5}'])).hf_overrides == {"rope_theta": 5}
    assert_one_line(tetrad("serve", "--hf-overrides", "[1]"), "--hf-overrides", "is not a JSON object")


def test_a_port_that_is_taken_is_one_line_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert_one_line(tetrad("serve", "--port", port), port, "--port")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--max-num-seqs", "0"), "max_num_seqs"),
        (("--port", "70000"), "70000"),
        (("--block-size", "17"), "17"),
        (("--log-level", "warn"), "warn"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(flags, word, tmp_path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")

    assert_one_line(tetrad("serve", str(model), "--port", "0", *flags), word)


def test_variables_give_the_address_of_serve(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("TETRAD_FRONTEND_HOST", "localhost")
        monkeypatch.setenv("TETRAD_FRONTEND_PORT", port)

        assert_one_line(tetrad("serve"), f"Cannot listen on localhost:{port}", "--port")
        assert_one_line(tetrad("serve", "--host", "127.0.0.1"), f"Cannot listen on 127.0.0.1:{port}")


def test_a_path_on_which_a_server_listens_is_one_line(tmp_path):
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()

        assert_one_line(tetrad("serve", "--device", "sim", "--uds", str(path)), f"unix:{path}: another server listens there")


def test_a_socket_and_a_port_exclude_each_other(tmp_path):
    (tmp_path / "tetrad.yaml").write_text("port: 8000\n")

    for port in (("--port", "0"), ("--config", str(tmp_path / "tetrad.yaml"))):
        assert_one_line(tetrad("serve", "--uds", "/run/x.sock", *port), "--uds /run/x.sock and --port", "exclude each other")
    printed = tetrad("serve", "--uds", "/run/x.sock", "--print-config").stdout
    assert "\nuds: /run/x.sock\n" in printed
    assert "\nport: null\n" in printed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"uds": "/" + "a" * 200}, "a Unix socket has at most 107 bytes, this one has 201"),
        ({"uds": "/x.sock", "ssl_certfile": "c", "ssl_keyfile": "k"}, "uds is a Unix socket, which has no TLS"),
    ],
)
def test_a_socket_that_cannot_serve_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        FrontendSettings(**fields)


@pytest.mark.parametrize(
    ("flag", "parser", "words"),
    [
        ("--enable-auto-tool-choice", "none", "--enable-auto-tool-choice needs a format of tool calls"),
        ("--no-enable-auto-tool-choice", "hermes", "--no-enable-auto-tool-choice is not supported"),
    ],
)
def test_a_choice_of_tools_that_no_server_makes_is_refused(flag, parser, words):
    with pytest.raises(InvalidRequest, match=f"^{words}"):
        check_auto_tool_choice(own_options(flag), FrontendSettings(tool_call_parser=parser))


@pytest.mark.parametrize(("flags", "parser"), [(("--enable-auto-tool-choice",), "auto"), ((), "none")])
def test_a_choice_of_tools_that_every_server_makes_is_accepted(flags, parser):
    check_auto_tool_choice(own_options(*flags), FrontendSettings(tool_call_parser=parser))


def own_options(*flags):
    parser = new_parser("serve", "")
    add_server_options(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_start_that_has_no_time_is_refused_before_anything_starts(seconds):
    result = tetrad("serve", "--device", "sim", "--port", "0", "--start-timeout-s", seconds)

    assert_one_line(result, f"--start-timeout-s must be more than 0, got {seconds}.")
    assert result.returncode == 78


def test_a_host_that_no_name_can_be_is_one_line():
    assert_one_line(tetrad("serve", "--host", "a" * 64, "--port", "0"), f"Cannot listen on {'a' * 64}:0: ", "--host")


def test_a_variable_with_a_wrong_port_is_one_line(monkeypatch):
    monkeypatch.setenv("TETRAD_FRONTEND_PORT", "http")

    assert_one_line(tetrad("serve"), "port: ", "'http'")


def test_a_key_file_that_does_not_exist_is_one_line_before_anything_starts():
    assert_one_line(tetrad("serve", "--api-key-file", "/no/such/keys", "--port", "0"), "/no/such/keys", "No such file")


def test_a_store_of_responses_that_cannot_be_written_is_one_line_before_anything_starts():
    result = tetrad("serve", "--device", "sim", "--port", "0", "--responses-store", "/proc/x/responses.sqlite3")

    assert result.returncode == 78
    assert_one_line(result, "The store of responses at /proc/x/responses.sqlite3 cannot be used: No such file or directory")


def test_server_options_take_lists_in_every_form_and_leave_out_what_is_not_given():
    parser = new_parser("serve", "")
    add_server_options(parser)

    options = parser.parse_args(["--api-key", "a,b", "--api-key", "c", "--allowed-origins", '["http://x"]', "--max-n", "3"])

    assert server_fields(options) == {"api_key": ("a", "b", "c"), "allowed_origins": ("http://x",), "max_n": 3}


@pytest.mark.parametrize("text", ["[secret", '["secret"'])
def test_a_list_that_is_not_json_is_one_line_without_its_content(text):
    result = tetrad("serve", "--api-key", text, "--port", "0")

    assert_one_line(result, "--api-key", "not a JSON list")
    assert result.returncode == 2
    assert "secret" not in result.stderr


def config(tmp_path, text: str):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def serve_options(*arguments: str):
    parser = new_parser("serve", "")
    add_config_options(parser)
    add_server_options(parser)
    add_engine_options(parser)
    return parse_with_config(parser, arguments), parser


@pytest.mark.parametrize("place", ["flag", "file"])
def test_an_option_that_equals_its_default_overrides_a_variable(place, tmp_path, monkeypatch):
    monkeypatch.setenv("TETRAD_WORKER_DEVICE", "sim")
    monkeypatch.setenv("TETRAD_WORKER_LOG_LEVEL", "debug")
    given = ("--device", "auto", "--log-level", "warning")
    arguments = given if place == "flag" else ("--config", config(tmp_path, "device: auto\nlog-level: warning"))

    left, chosen = (engine_args(serve_options("smollm2-135m-instruct", *each)[0]).stack_settings() for each in ((), arguments))

    assert (left.worker.device, left.worker.log_level) == ("sim", "debug")
    assert (chosen.worker.device, chosen.worker.log_level) == ("auto", "warning")


def test_a_config_file_gives_options_and_flags_override_it(tmp_path):
    path = config(tmp_path, "model: mine\nmax-num-seqs: 5\napi_key: [one, two]\nconsole: false\nseed: null\n")

    of_file, _ = serve_options("--config", path)
    of_flags, _ = serve_options("other", "--config", path, "--api-key", "three", "--max-num-seqs", "6", "--console")

    assert engine_args(of_file).model == "mine"
    assert (of_file.max_num_seqs, of_file.api_key, of_file.console, of_file.seed) == (5, ("one", "two"), False, None)
    assert engine_args(of_flags).model == "other"
    assert (of_flags.max_num_seqs, of_flags.api_key, of_flags.console) == (6, ("three",), True)


@pytest.mark.parametrize("word", ["on", "off", "'on'", "'off'", "auto"])
def test_a_config_file_needs_no_quotes_for_on_and_off(word, tmp_path):
    options, _ = serve_options("--config", config(tmp_path, f"operator-endpoints: {word}"))

    assert options.operator_endpoints == word.strip("'")


def test_a_printed_config_is_a_config_file_with_the_same_options(tmp_path):
    flags = ("m", "--max-num-seqs", "7", "--lora-modules", "a=/x", "b=/y", "--hf-overrides", '{"a": [1]}', "--no-console")
    given, parser = serve_options(*flags, "--served-model-name", "n", "k")

    read, _ = serve_options("--config", config(tmp_path, config_text(parser, given)))

    assert {**vars(read), "config": None, "given": given.given} == vars(given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prt: 1", "there is no option 'prt'. Did you mean port?"),
        ("max_num_seqs: many", "max_num_seqs: invalid int value: 'many'"),
        ("max_num_seqs: true", "max_num_seqs: takes no such value: True"),
        ("console: 3", "console: must be true or false, got 3"),
        ("hf_overrides: {released: 2026-01-02}", "hf_overrides: takes no such value: {'released': datetime.date(2026, 1, 2)}"),
        ("port: [8001, 8002]", "port: takes one value, got [8001, 8002]"),
        ("hf_token: [a]", "hf_token: takes one value, got ['a']"),
        ("model: true", "model: takes no such value: True"),
        ("model: [a]", "model: takes no such value: ['a']"),
        ("device: tpu", "device: invalid choice: 'tpu'"),
        ("[1]", "must hold options"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_config_file_is_one_line_that_names_it(tmp_path, text, words):
    path = config(tmp_path, text)

    assert_one_line(tetrad("serve", "--config", path), path, words)


def test_serve_prints_its_config(tmp_path):
    result = tetrad("serve", "--print-config", "--max-num-seqs", "7")

    assert (result.returncode, result.stderr) == (0, "")
    assert "# Maximum number of requests that run at the same time. (default: 256)\nmax_num_seqs: 7\n" in result.stdout


@pytest.mark.parametrize(
    ("also", "words"),
    [
        ("embed", "'embed' is neither NAME=MODEL nor a JSON object with name and model"),
        ("=./model", "is neither NAME=MODEL"),
        ('{"name": "embed"', "is not JSON"),
        pytest.param('{"name": ' + "[" * 2000, "is not JSON", id="deep"),
        ('{"name": "embed", "model": "m", "sorcery": 1}', "a further model has no option 'sorcery'"),
        (
            '{"name": "b", "model": "m", "limit_mm_per_prompt": {"image": 1}}',
            "a further model has no option 'limit_mm_per_prompt'",
        ),
    ],
)
def test_a_further_model_that_cannot_be_served_is_refused(also, words):
    with pytest.raises(InvalidRequest, match=f"^--also: .*{words}"):
        also_settings([also], EngineArgs(device="sim"))


def test_two_models_of_one_name_are_refused():
    settings = EngineArgs(device="sim", served_model_name="main").stack_settings()

    with pytest.raises(InvalidRequest, match="Two models have the name 'main'"):
        replace(settings, further=also_settings([f"main={DEFAULT_MODEL}"], EngineArgs(device="sim")))


def test_further_models_have_options_of_their_own_and_the_machines_of_the_first():
    first = EngineArgs(device="sim", threads=3, max_model_len=256, log_level="error")

    [plain, own] = also_settings(
        [f"a={DEFAULT_MODEL}", f'{{"name": "b", "model": "{DEFAULT_MODEL}", "max-model-len": 64}}'], first
    )

    assert (plain.frontend.names, own.frontend.names) == (("a",), ("b",))
    assert (plain.worker.device, plain.worker.threads, plain.worker.log_level) == ("sim", 3, "error")
    assert (plain.engine_core.max_model_len, own.engine_core.max_model_len) == (None, 64)


def test_a_further_model_has_variables_of_its_template():
    options = f'{{"name": "b", "model": "{DEFAULT_MODEL}", "default_chat_template_kwargs": {{"enable_thinking": false}}}}'

    [settings] = also_settings([options], EngineArgs(device="sim"))

    assert settings.frontend.default_chat_template_kwargs == '{"enable_thinking": false}'


def test_a_config_file_lists_further_models(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("also:\n  - embed=./bge\n  - {name: rank, model: ./ranker, runner: pooling}\n")
    parser = new_parser("serve", "Serves.")
    add_also_option(parser)
    add_config_options(parser)
    add_engine_options(parser)

    listed = parse_with_config(parser, ["--config", str(path)]).also
    replaced = parse_with_config(parser, ["--config", str(path), "--also", "x=y"]).also

    assert listed == ("embed=./bge", '{"name": "rank", "model": "./ranker", "runner": "pooling"}')
    assert replaced == ("x=y",)


@pytest.mark.parametrize("flag", ["--api-key", "--operator-api-key"])
@pytest.mark.parametrize("text", ["", " ", "a,", '["a", ""]'])
def test_an_empty_key_is_refused(flag, text):
    """As from a variable that is not set: without a key the server would be open."""
    parser = new_parser("serve", "")
    parser.exit_on_error = False
    add_server_options(parser)

    with pytest.raises(argparse.ArgumentError, match="a key must not be empty"):
        parser.parse_args([f"{flag}={text}"])


def test_options_of_images_have_vllms_names(tmp_path):
    parser = new_parser("serve", "")
    add_engine_options(parser)
    add_server_options(parser)
    flags = [
        *("--limit-mm-per-prompt", '{"image": 4}', "--mm-processor-kwargs", '{"max_pixels": 784}'),
        *("--allowed-local-media-path", str(tmp_path), "--allowed-media-domains", "a.example,b.example", "c.example"),
        *("--max-media-bytes", "5000", "--allowed-media-networks", "10.1.0.0/16", "--media-fetch-timeout-s", "2.5"),
    ]

    options = parser.parse_args(flags)

    args = engine_args(options)

    assert (args.limit_mm_per_prompt, args.mm_processor_kwargs) == ({"image": 4}, {"max_pixels": 784})
    assert (args.allowed_local_media_path, args.allowed_media_domains) == (
        str(tmp_path),
        ("a.example", "b.example", "c.example"),
    )
    assert server_fields(options) == {
        "max_media_bytes": 5000,
        "allowed_media_networks": ("10.1.0.0/16",),
        "media_fetch_timeout_s": 2.5,
    }
