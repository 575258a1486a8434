"""Frontend settings from flags and environment."""

import re

import pytest
from pydantic import ValidationError

from tetrad.frontend.config import FrontendSettings
from tetrad.services.settings import child_environment, load_settings


@pytest.mark.parametrize("value", ["a:1,b:2", '["a:1", "b:2"]'])
def test_targets_are_lists_in_the_environment(monkeypatch, value):
    monkeypatch.setenv("TETRAD_FRONTEND_ENGINE_TARGETS", value)

    assert load_settings(FrontendSettings, [], prog="t").engine_targets == ("a:1", "b:2")


def test_targets_are_lists_on_the_command_line():
    settings = load_settings(FrontendSettings, ["--engine-targets", "unix:/a,unix:/b", "--grpc-port", "5"], prog="t")

    assert settings.engine_targets == ("unix:/a", "unix:/b")
    assert settings.grpc_address == "127.0.0.1:5"


def test_settings_survive_the_way_to_a_child_process(monkeypatch):
    settings = FrontendSettings(engine_targets=("a:1", "b:2"), served_model_names=("x",), recovery_timeout_s=3)
    for name, value in child_environment(settings).items():
        monkeypatch.setenv(name, value)

    assert load_settings(FrontendSettings, [], prog="t") == settings


def test_public_grpc_is_off_unless_asked_for():
    assert FrontendSettings().grpc_address is None


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "0.0.0.0:5"), ("", "0.0.0.0:5"), ("::", "[::]:5"), ("::1", "[::1]:5"), ("a.b", "a.b:5")],
)
def test_public_grpc_is_on_the_host_of_http(host, address):
    assert FrontendSettings(host=host, grpc_port=5).grpc_address == address


@pytest.mark.parametrize("field", ["tool_call_parser", "reasoning_parser"])
def test_unknown_parsers_are_refused(field):
    with pytest.raises(ValidationError, match="There is no parser 'x'"):
        FrontendSettings(**{field: "x"})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"traces_url": "javascript:alert(1)"}, "must be a URL that begins with http:// or https://, got 'javascript:alert"),
        ({"traces_url": "http://traces", "console": False}, "traces-url is a link in the console, which is off"),
    ],
)
def test_a_link_to_traces_that_cannot_be_shown_is_refused(fields, problem):
    with pytest.raises(ValidationError, match=re.escape(problem)):
        FrontendSettings(**fields)


@pytest.mark.parametrize("prefix", ["", "my-model", "1st", "a b", "modèle"])
def test_a_prefix_that_no_metric_may_have_is_refused(prefix):
    """Prometheus' library would export other names than the setting says."""
    with pytest.raises(ValidationError, match="letters, digits and underscores"):
        FrontendSettings(metrics_prefix=prefix)


@pytest.mark.parametrize("text", ["[1]", "{", "thinking"])
def test_variables_of_the_template_are_a_json_object(text):
    with pytest.raises(ValidationError, match="must be a JSON object"):
        FrontendSettings(default_chat_template_kwargs=text)


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"])
def test_no_variable_of_the_template_has_the_name_of_an_argument_of_rendering(name):
    """Every chat would be refused."""
    with pytest.raises(ValidationError, match=f"sets '{name}', which is an argument of rendering"):
        FrontendSettings(default_chat_template_kwargs=f'{{"enable_thinking": false, "{name}": []}}')


@pytest.mark.parametrize("module", ["sql", "sql=", "=/adapters/sql", '{"sql": "/adapters/sql"}'])
def test_an_adapter_without_a_name_or_a_path_is_refused(module):
    with pytest.raises(ValidationError, match="must be NAME=PATH, got"):
        FrontendSettings(lora_modules=(module,))
