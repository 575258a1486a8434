"""EngineArgs: vLLM's names become the settings of the right service; none is dropped silently."""

import dataclasses
import json

import pytest

from tetrad import LLM, AsyncEngineArgs, EngineArgs
from tetrad.drop_in.older_engine_arguments import ALIASES, IN_BYTES
from tetrad.library.engine_settings import SETTING_OF
from tetrad.library.llm_arguments import make_llm
from tetrad.logits_processors import AdapterLogitsProcessor
from tetrad.services.errors import InvalidRequest, NotFound, TetradError
from tetrad.services.verdicts import verdicts_of

FIELDS = {field.name for field in dataclasses.fields(EngineArgs)}
DERIVED = {"model", "tokenizer", "revision", "tokenizer_revision", "served_model_name", "generation_config", "log_level"}
DERIVED |= {"tokenizer_pool_size", "otlp_traces_endpoint", "hf_overrides", "disable_log_stats", "speculative_config"}
DERIVED |= {"data_parallel_size", "num_prefill_engines", "tensor_parallel_size", "pipeline_parallel_size", "pooler_config"}
DERIVED |= {"hf_token", "download_dir", "override_generation_config"}
DERIVED |= {"default_mm_loras", "limit_mm_per_prompt", "mm_processor_kwargs", "mm_processor_cache_gb", "media_io_kwargs"}
VERDICTS = verdicts_of(EngineArgs)
REFUSED = {name: verdict for name, verdict in VERDICTS.items() if verdict.kind == "refused"}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def test_every_argument_has_exactly_one_meaning():
    kinds = [set(SETTING_OF), set(VERDICTS), DERIVED]

    assert set().union(*kinds) == FIELDS
    assert sum(map(len, kinds)) == len(FIELDS)


@pytest.mark.parametrize("name", SETTING_OF)
def test_an_argument_becomes_a_setting_that_exists(name):
    owner, setting = SETTING_OF[name]

    assert setting in owner.model_fields


@pytest.mark.parametrize(("size", "shown"), [(0, "0"), (65, "65"), ("2", "'2'"), (True, "True"), (1.5, "1.5")])
def test_a_wrong_number_of_services_is_named(size, shown):
    with pytest.raises(InvalidRequest, match=f"tensor_parallel_size must be between 1 and 64, got {shown}"):
        EngineArgs(tensor_parallel_size=size)


@pytest.mark.parametrize("values", [{"model": "/m/\udcff"}, {"served_model_name": ["a", "\udcff"]}])
def test_a_text_that_is_not_utf_8_is_refused(values):
    with pytest.raises(InvalidRequest, match=rf"^{next(iter(values))} .*udcff' is no text in UTF-8"):
        EngineArgs(**values)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensor_parallel_size": 64}, r"tensor_parallel_size 64 does not divide .* It may be: 1, 3\."),
        ({"pipeline_parallel_size": 64}, "pipeline_parallel_size 64 exceeds this model's 30 layers"),
        ({"enable_expert_parallel": True}, "this model has none"),
        ({"tensor_parallel_size": 3, "device": "sim"}, "tensor_parallel_size 3: the sim device computes a model on one worker"),
    ],
    ids=str,
)
def test_a_split_of_a_gguf_file_is_checked_before_workers_start(smollm2, options, text):
    """64 workers take minutes to start."""
    with pytest.raises(TetradError, match=text):
        EngineArgs(model=str(smollm2), **options).stack_settings()


def test_arguments_reach_their_services(model):
    args = EngineArgs(
        model=model, max_num_seqs=7, block_size=32, enable_prefix_caching=False, device="sim", threads=3, max_logprobs=5
    )

    settings = args.stack_settings(port=8123)

    engine_core = settings.engine_core
    assert (engine_core.max_num_seqs, engine_core.block_size, engine_core.enable_prefix_caching) == (7, 32, False)
    assert (settings.worker.device, settings.worker.threads) == ("sim", 3)
    assert (settings.frontend.max_logprobs, settings.frontend.port) == (5, 8123)
    assert {settings.tokenizer.model, engine_core.model} == {model}


def test_the_log_level_of_a_service_is_its_variables_unless_it_is_given(model, monkeypatch):
    monkeypatch.setenv("TETRAD_WORKER_LOG_LEVEL", "debug")

    left = EngineArgs(model=model, device="sim").stack_settings()
    given = EngineArgs(model=model, device="sim", log_level="error").stack_settings()

    assert [each.log_level for each in (left.worker, left.frontend)] == ["debug", "warning"]
    assert [each.log_level for each in (given.worker, given.frontend)] == ["error", "error"]


def test_only_settings_that_were_chosen_count_as_set(model, monkeypatch):
    """A stack drains a frontend for the chosen time, else briefly."""
    left = EngineArgs(model=model, device="sim").stack_settings().frontend
    monkeypatch.setenv("TETRAD_FRONTEND_DRAIN_TIMEOUT_S", "60")

    chosen = EngineArgs(model=model, device="sim").stack_settings().frontend

    assert "drain_timeout_s" not in left.model_fields_set
    assert "drain_timeout_s" in chosen.model_fields_set


def test_what_is_not_given_is_left_to_the_services_environment(model, monkeypatch):
    monkeypatch.setenv("TETRAD_ENGINE_CORE_MAX_NUM_SEQS", "11")

    assert EngineArgs(model=model).stack_settings().engine_core.max_num_seqs == 11
    assert EngineArgs(model=model, max_num_seqs=5).stack_settings().engine_core.max_num_seqs == 5


def test_names_and_sampling_defaults_that_are_not_given_are_left_to_the_frontends_environment(model, monkeypatch):
    monkeypatch.setenv("TETRAD_FRONTEND_SERVED_MODEL_NAMES", "a,b")
    monkeypatch.setenv("TETRAD_FRONTEND_USE_GENERATION_CONFIG", "false")

    left = EngineArgs(model=model, device="sim").stack_settings().frontend
    named = EngineArgs(model=model, device="sim", served_model_name="m").stack_settings().frontend
    monkeypatch.setenv("TETRAD_FRONTEND_USE_GENERATION_CONFIG", "true")
    unused = EngineArgs(model=model, device="sim", generation_config="vllm").stack_settings().frontend

    assert (left.served_model_names, left.use_generation_config) == (("a", "b"), False)
    assert named.served_model_names == ("m",)
    assert not unused.use_generation_config


def test_steps_of_a_program_are_large_unless_a_size_was_chosen(model, monkeypatch):
    def size(**arguments):
        args = EngineArgs(model=model, device="sim", **arguments)
        make_llm(args)
        return args.stack_settings().engine_core.max_num_batched_tokens

    assert [size(), size(max_num_batched_tokens=64), size(enable_chunked_prefill=False)] == [8192, 64, None]

    monkeypatch.setenv("TETRAD_ENGINE_CORE_MAX_NUM_BATCHED_TOKENS", "512")

    assert [size(), size(max_num_batched_tokens=64)] == [512, 64]


def test_clients_see_the_name_that_was_given_not_the_path(model):
    assert EngineArgs(model=model).stack_settings().frontend.served_model_names == (model,)
    assert EngineArgs(model=model, served_model_name="m").stack_settings().frontend.served_model_names == ("m",)
    assert EngineArgs(model=model, served_model_name=["a", "b"]).stack_settings().frontend.served_model_names == ("a", "b")


def test_the_tokenizer_may_be_elsewhere(model, tmp_path):
    settings = EngineArgs(model=model, tokenizer=str(tmp_path)).stack_settings()

    assert (settings.tokenizer.model, settings.tokenizer.tokenizer) == (model, str(tmp_path.resolve()))


def test_a_value_that_a_service_refuses_names_the_argument(model):
    with pytest.raises(InvalidRequest, match=r"max_num_seqs: .*greater than or equal to 1.*0"):
        EngineArgs(model=model, max_num_seqs=0).stack_settings()


@pytest.mark.parametrize("name", REFUSED)
def test_what_tetrad_cannot_do_is_refused_with_the_name_the_reason_and_an_error_that_is_a_not_implemented_error(name):
    with pytest.raises(TetradError, match=f"^{name}='what nobody knows' is not supported: ") as refused:
        EngineArgs(**{name: "what nobody knows"})

    assert isinstance(refused.value, NotImplementedError)
    assert isinstance(refused.value, ValueError)
    assert REFUSED[name].why in str(refused.value)


def test_vllms_own_defaults_are_accepted():
    EngineArgs(**{name: verdict.default for name, verdict in VERDICTS.items()})


def test_what_asks_for_what_is_so_anyway_is_accepted():
    EngineArgs(task="generate", runner="generate", tokenizer_mode="slow", media_io_kwargs={}, model_impl="vllm")


def test_tuning_of_vllms_machinery_is_accepted():
    ignored = {name: "what nobody knows" for name, verdict in VERDICTS.items() if verdict.kind == "ignored"}

    EngineArgs(enforce_eager=True, **ignored)


def test_an_older_name_is_the_argument_that_it_is_now():
    assert EngineArgs(chunked_prefill_enabled=False).enable_chunked_prefill is False
    assert EngineArgs(kv_offloading_size=2.5).swap_space == 2.5
    assert EngineArgs(kv_cache_memory_bytes=3 << 29).kv_cache_memory_gib == 1.5


def test_an_older_pooler_config_is_the_pooler_config():
    assert EngineArgs(override_pooler_config={"pooling_type": "MEAN"}).pooler_config == {"pooling_type": "MEAN"}


def test_every_renamed_argument_is_passed_on():
    renamed = {name for name, verdict in VERDICTS.items() if verdict.kind == "renamed"}

    assert renamed == {*ALIASES, *IN_BYTES}


@pytest.mark.parametrize("value", ["1G", 0, -5, True])
def test_a_size_in_bytes_that_is_none_is_refused_with_its_name_and_value(value):
    with pytest.raises(InvalidRequest, match=f"kv_cache_memory_bytes must be a positive number of bytes, got {value!r}"):
        EngineArgs(kv_cache_memory_bytes=value)


@pytest.mark.parametrize(("name", "kinds"), [("hf_token", "str or bool"), ("download_dir", "str or Path")])
def test_what_is_no_token_or_directory_is_refused_with_its_name_and_value(name, kinds):
    with pytest.raises(InvalidRequest, match=f"{name} must be {kinds}, got 5"):
        EngineArgs(**{name: 5})


def test_sampling_defaults_that_replace_the_models_reach_the_frontend(model):
    settings = EngineArgs(model=model, override_generation_config={"temperature": 0.3, "top_k": 5}).stack_settings()

    assert json.loads(settings.frontend.override_generation_config) == {"temperature": 0.3, "top_k": 5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 5}, "override_generation_config: max_new_tokens cannot be overridden; temperature, top_p, "),
        ({"temperature": -1}, "override_generation_config: .*temperature.*-1"),
        ({"top_p": "high"}, "override_generation_config: .*top_p"),
    ],
)
def test_sampling_defaults_that_cannot_be_are_refused_by_name(values, message):
    with pytest.raises(InvalidRequest, match=message):
        EngineArgs(override_generation_config=values)


def test_overrides_of_the_config_reach_the_engine_core(model):
    settings = EngineArgs(model=model, hf_overrides={"rope_theta": 5.0}).stack_settings()

    assert settings.engine_core.hf_overrides == '{"rope_theta": 5.0}'


def test_a_function_that_overrides_the_config_is_called_with_it_and_what_it_changed_goes_on(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rope_theta": 10000.0, "rope_scaling": {"factor": 2}}')

    def change(config):
        config.rope_theta *= 2
        config.rope_scaling["factor"] = 4
        config.update({"max_position_embeddings": 64})
        return config

    settings = EngineArgs(model=str(tmp_path), hf_overrides=change).stack_settings()

    changed = {"rope_theta": 20000.0, "rope_scaling": {"factor": 4}, "max_position_embeddings": 64}
    assert json.loads(settings.engine_core.hf_overrides) == changed


def test_a_value_that_a_function_removes_from_an_inner_config_goes_on_as_null(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {"rope_theta": 10000.0, "sliding_window": 64, "hidden_size": 8}}')

    def change(config):
        config.text_config = {"rope_theta": 5.0, "hidden_size": 8}
        return config

    settings = EngineArgs(model=str(tmp_path), hf_overrides=change).stack_settings()

    assert json.loads(settings.engine_core.hf_overrides) == {"text_config": {"rope_theta": 5.0, "sliding_window": None}}


@pytest.mark.parametrize("overrides", [7, {"a": object()}, lambda config: None])
def test_overrides_that_are_none_are_refused_by_name(overrides, tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(InvalidRequest, match="hf_overrides"):
        EngineArgs(model=str(tmp_path), hf_overrides=overrides).stack_settings()


@pytest.mark.parametrize("cls", [EngineArgs, AsyncEngineArgs])
def test_an_unknown_argument_is_a_type_error_that_names_it(cls):
    with pytest.raises(TypeError, match="colour"):
        cls(colour="red")


def test_llm_names_every_unknown_argument():
    with pytest.raises(TypeError, match="colour, shape"):
        LLM(shape="round", colour="red")


def test_llm_refuses_a_model_that_does_not_exist():
    with pytest.raises(NotFound, match=r"/no/such\.gguf"):
        LLM("/no/such.gguf")


def test_llm_refuses_engine_arguments_beside_a_target():
    with pytest.raises(InvalidRequest, match="max_num_seqs"):
        LLM(target="127.0.0.1:1,127.0.0.1:2", max_num_seqs=3)


def test_speculation_becomes_the_engine_cores_setting(model):
    config = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4}

    settings = EngineArgs(model=model, speculative_config=config).stack_settings()

    assert json.loads(settings.engine_core.speculative_config) == config


def test_speculation_that_is_not_supported_is_refused_before_anything_starts(model):
    with pytest.raises(InvalidRequest, match="'medusa' is given; use one of ngram, suffix"):
        EngineArgs(model=model, speculative_config={"method": "medusa", "num_speculative_tokens": 3})


def made_in_a_function():
    class Inner(AdapterLogitsProcessor):
        pass

    return Inner


class Mine(AdapterLogitsProcessor):
    """Named by this module."""


Main = type("Main", (), {"__module__": "__main__"})


def test_logits_processors_become_names_that_a_worker_imports(model):
    settings = EngineArgs(model=model, logits_processors=[Mine, "other_module:Theirs"]).stack_settings()

    assert settings.worker.logits_processors == (f"{__name__}:Mine", "other_module:Theirs")
    assert EngineArgs(model=model, logits_processors=[]).stack_settings().worker.logits_processors == ()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([made_in_a_function()], "Inner is defined in a function, where a worker cannot import it"),
        ([Main], "Main is defined in the main program, where a worker cannot import it"),
        (["my_module"], "'my_module' must be written as module:Class"),
        ([3], "3 is neither a class nor a name"),
        ("my_module:Mine", "must be a list of classes or names, got 'my_module:Mine'"),
        (Mine, "must be a list of classes or names"),
    ],
)
def test_logits_processors_that_no_worker_can_import_are_refused(model, given, text):
    with pytest.raises(InvalidRequest, match=text):
        EngineArgs(model=model, logits_processors=given)


def test_arguments_of_images_reach_their_services(model, tmp_path):
    args = EngineArgs(
        model=model,
        limit_mm_per_prompt={"image": 4},
        allowed_local_media_path=tmp_path,
        allowed_media_domains=["a.example,b.example", "c.example"],
        mm_processor_kwargs={"max_pixels": 784},
        mm_processor_cache_gb=0.5,
    )

    settings = args.stack_settings()

    frontend, tokenizer = settings.frontend, settings.tokenizer
    assert (json.loads(frontend.limit_mm_per_prompt), frontend.allowed_local_media_path) == ({"image": 4}, tmp_path)
    assert frontend.allowed_media_domains == ("a.example", "b.example", "c.example")
    assert (json.loads(tokenizer.mm_processor_kwargs), tokenizer.media_cache_bytes) == ({"max_pixels": 784}, 1 << 29)
    assert settings.worker.mm_processor_kwargs == tokenizer.mm_processor_kwargs


def test_a_model_of_texts_alone_takes_no_images(model):
    settings = EngineArgs(model=model, language_model_only=True).stack_settings()

    assert json.loads(settings.frontend.limit_mm_per_prompt) == {"image": 0, "audio": 0, "video": 0}
    assert settings.worker.language_model_only


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit_mm_per_prompt": 4}, "limit_mm_per_prompt must be dict, got 4"),
        ({"limit_mm_per_prompt": {"image": 4}, "language_model_only": True}, "leave limit_mm_per_prompt out"),
        ({"enable_mm_embeds": True, "language_model_only": True}, "which language_model_only leaves out"),
        ({"default_mm_loras": {"image": "/a"}, "language_model_only": True}, "leave default_mm_loras out"),
        ({"allowed_media_domains": 4}, "allowed_media_domains must be a list of host names, got 4"),
        ({"mm_processor_kwargs": "x"}, "mm_processor_kwargs must be dict, got 'x'"),
        ({"mm_processor_cache_gb": -1}, "mm_processor_cache_gb must be a number of GiB, 0 or more, got -1"),
    ],
)
def test_a_wrong_argument_of_images_is_named(arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        EngineArgs(**arguments)


def test_with_a_target_the_program_decides_where_images_come_from(tmp_path):
    """Its own frontend fetches them; the processor belongs to the services."""
    make_llm(EngineArgs(allowed_local_media_path=tmp_path, limit_mm_per_prompt={"image": 1}), "127.0.0.1:1,127.0.0.1:2")

    with pytest.raises(InvalidRequest, match="the services decide on mm_processor_kwargs: leave"):
        make_llm(EngineArgs(mm_processor_kwargs={"max_pixels": 784}), "127.0.0.1:1,127.0.0.1:2")
