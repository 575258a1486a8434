"""`tetrad plan`: the memory and the speed of each split of a model over GPUs."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from benchmarks.splits import cases
from tests.documents import Page
from tests.vision_files import save_vision_model
from tests.whisper_files import save_whisper
from tests.worker_svc.families.tiny_models import save_family
from tetrad.cli import main
from tetrad.cli.planning.forecast import Workload, forecast
from tetrad.cli.planning.gpu_types import GpuType
from tetrad.cli.planning.number_types import WeightBytes, matrix_bytes
from tetrad.cli.planning.splits import Split, splits_of
from tetrad.cli.planning.stage import Stage, Step
from tetrad.cli.planning.tower import count_tower
from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.families.registry import read_config

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
# Parameters in the matrices of 8 layers, and in the logits' matrix.
LAYERS = 8 * (512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 2048)
HEAD = 1000 * 512
NORMS = 8 * (2 * 512 + 2 * 64) + 512
GPU = GpuType("test", memory_gib=4.0, memory_gb_s=100, tflops=10, link_gb_s=10, link_latency_us=10)
WORK = Workload(context=1000, num_requests=8, max_num_batched_tokens=2000, max_num_seqs=256, utilization=1.0)
PLAIN = WeightBytes("bfloat16", 2.0)


@pytest.fixture
def plan(tmp_path, capsys):
    """Return what plans a model with these values of its config: -> exit code, stdout, stderr."""

    def run(*arguments, **changes):
        (tmp_path / "config.json").write_text(json.dumps(DENSE | changes))
        code = main(["plan", str(tmp_path), *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def forecast_of(tensor=1, pipeline=1, data=1, gpu=GPU, work=WORK, **changes):
    return forecast(read_config(DENSE | changes), Split(tensor, pipeline, data), gpu, work, weights=PLAIN, cache_bytes=2)


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek_v3", "mixtral", "qwen3_next", "mamba", "mamba2"])
def test_weights_and_cache_are_what_a_worker_has(family, tmp_path):
    """Windows, latent attention, experts and states among them: a plan and the CPU device count alike."""
    save_family(tmp_path, family)
    config = read_config(json.loads((tmp_path / "config.json").read_text()))
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch"))
    device.set_up()
    loaded = device.load_model(LoadRequest("m", tmp_path), lambda *_: None)

    groups = loaded.kv_groups(16)
    tokens_of_a_block = groups[0].block_size or 16
    num_tokens = 2 * tokens_of_a_block
    planned = Stage(config, range(config.num_layers), WeightBytes("float32", 4.0), cache_bytes=4)

    assert planned.weights_bytes == 4 * loaded.info.num_parameters
    blocks = [
        1 if group.is_state else min(num_tokens, group.sliding_window or num_tokens) / tokens_of_a_block for group in groups
    ]
    assert planned.cache_bytes_of(num_tokens) == sum(
        count * group.block_size_bytes for count, group in zip(blocks, groups, strict=True)
    )


@pytest.mark.parametrize("family", ["mamba", "mamba2", "qwen3_next", "lfm2"])
def test_the_memory_of_a_step_has_the_inputs_of_its_states(family, tmp_path):
    save_family(tmp_path, family)
    config = read_config(json.loads((tmp_path / "config.json").read_text()))
    stage = Stage(config, range(config.num_layers), PLAIN, cache_bytes=2)

    of_a_token = (stage.step_bytes(3000, 1) - stage.step_bytes(1000, 1)) / 2000

    inputs = max(sum(layer.state.parts.values()) for layer in config.layers if layer.state is not None)
    assert of_a_token > (2 + 4) * inputs + 2 * 4 * config.hidden_size  # in the activations' type, and in float32


def test_splits_use_all_gpus():
    assert [(each.tensor, each.pipeline, each.data) for each in splits_of(4)] == [
        (1, 1, 4),
        (2, 1, 2),
        (1, 2, 2),
        (4, 1, 1),
        (2, 2, 1),
        (1, 4, 1),
    ]


def test_one_request_takes_the_time_to_read_the_weights_and_its_context():
    found = forecast_of()

    cache = 8 * 2 * 4 * 64 * 2 * WORK.context
    assert found.weights_bytes == 2 * (LAYERS + 2 * HEAD + NORMS)
    assert found.one.step_seconds == pytest.approx((2 * (LAYERS + HEAD + NORMS) + cache) / 100e9)
    assert found.one.link_seconds == 0
    assert found.many.tokens_per_s > 7 * found.one.tokens_per_s * (2 * LAYERS) / (2 * LAYERS + 8 * cache)


def test_large_steps_take_the_time_of_their_products():
    slow = GpuType("slow", 4.0, memory_gb_s=1e6, tflops=0.001, link_gb_s=10, link_latency_us=10)

    found = forecast_of(gpu=slow)

    attention = 4 * 8 * 64 * 500 * 8
    flops = 2000 * (2 * (LAYERS + NORMS) + attention) + 2 * 2 * HEAD
    assert found.prompt_tokens_per_s == pytest.approx(2000 / (flops / 1e9), rel=1e-3)


def test_ranks_halve_what_is_read_and_add_their_sums():
    one, two = forecast_of(), forecast_of(tensor=2)

    sums = 2 * 8 + 1
    of_a_sum = 10e-6 + 512 * 2 / 10e9
    logits = 10e-6 + 500 * 4 / 10e9
    assert two.one.link_seconds == pytest.approx(sums * of_a_sum + logits)
    assert two.one.step_seconds - two.one.link_seconds == pytest.approx(one.one.step_seconds / 2, rel=0.01)
    assert two.weights_bytes == pytest.approx(one.weights_bytes / 2, rel=0.01)
    assert two.kv_tokens > 2 * one.kv_tokens * 0.95


def test_ranks_beyond_the_heads_of_keys_have_the_same_ones():
    four, eight = forecast_of(tensor=4), forecast_of(tensor=8)

    # A rank of eight has one of four heads of keys, as a rank of four has: a token takes as much of its cache.
    assert eight.kv_tokens / eight.kv_bytes == pytest.approx(four.kv_tokens / four.kv_bytes, rel=1e-3)


def test_stages_serve_more_requests_and_one_request_no_faster():
    one, two = forecast_of(), forecast_of(pipeline=2)

    assert two.one.tokens_per_s < one.one.tokens_per_s
    assert two.prompt_tokens_per_s > 1.8 * one.prompt_tokens_per_s


def test_the_stage_of_the_output_layer_has_fewer_layers():
    """As on the cuda device; a matrix of logits as large as two layers."""
    found = forecast_of(pipeline=4, vocab_size=20_000)

    with_two_layers = 2 * (LAYERS / 4 + 20_000 * 512) / 100e9
    assert found.many.step_seconds < 4 * with_two_layers


def test_engines_multiply_what_one_of_them_does():
    one, four = forecast_of(), forecast_of(data=4)

    assert (four.one, four.kv_tokens) == (one.one, 4 * one.kv_tokens)
    assert four.many.step_seconds < one.many.step_seconds
    assert four.prompt_tokens_per_s == 4 * one.prompt_tokens_per_s


def test_a_step_reads_the_experts_that_some_token_chooses(tmp_path):
    save_family(tmp_path, "mixtral")
    config = read_config(json.loads((tmp_path / "config.json").read_text()))
    stage = Stage(config, range(config.num_layers), PLAIN, cache_bytes=2)
    experts = config.layers[0].experts

    one, all_of_them = (stage.read_bytes(Step(tokens, 0, 0)) for tokens in (1, 10_000))

    unread = (1 - experts.num_chosen / experts.num_experts) * experts.num_experts * 3 * 64 * experts.intermediate_size
    assert all_of_them - one == pytest.approx(2 * config.num_layers * unread)


def test_whole_experts_need_not_be_divided(tmp_path):
    save_family(tmp_path, "mixtral", intermediate_size=33)
    config = read_config(json.loads((tmp_path / "config.json").read_text()))
    options = {"gpu": GPU, "workload": replace(WORK, context=64), "weights": PLAIN, "cache_bytes": 2, "expert_parallel": True}

    two, one = (forecast(config, Split(size, 1, 1), **options) for size in (2, 1))

    with pytest.raises(ModelError, match="tensor_parallel_size 2 does not divide"):
        forecast(config, Split(2, 1, 1), **options | {"expert_parallel": False})
    with pytest.raises(ModelError, match="enable_expert_parallel with data_parallel_size 2 runs on the cpu device alone"):
        forecast(config, Split(1, 1, 2), **options)
    experts = 2 * config.num_layers * config.layers[0].experts.num_experts * 3 * 64 * 33
    assert one.weights_bytes - two.weights_bytes > experts / 2


def test_a_model_that_does_not_fit_has_no_rates():
    found = forecast_of(gpu=GpuType("small", 1.0, 100, 10, 10, 10))

    assert (found.one, found.many, found.prompt_tokens_per_s, found.kv_tokens) == (None, None, None, 0)
    assert found.kv_bytes < 0


@pytest.mark.parametrize(
    ("quantization_config", "size"),
    [
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "awq", "bits": 4}, 0.5 + 3 / 128),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 2 / 16),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 3 / 128),
    ],
)
def test_a_quantized_checkpoint_says_how_large_its_weights_are(quantization_config, size):
    assert matrix_bytes({"quantization_config": quantization_config}, "bfloat16", None) == size
    with pytest.raises(InvalidRequest, match="quantized as"):
        matrix_bytes({"quantization_config": quantization_config}, "bfloat16", "int8")


def test_quantization_leaves_embeddings_and_logits_as_they_are():
    weights = WeightBytes("bfloat16", 1.0)

    assert weights.of("model.layers.0.mlp.up_proj.weight", (4, 4)) == 1
    assert weights.of("model.layers.0.input_layernorm.weight", (4,)) == 2
    assert weights.of("lm_head.weight", (4, 4)) == weights.of("model.embed_tokens.weight", (4, 4)) == 2


def test_too_many_stages_are_refused():
    with pytest.raises(ModelError, match="pipeline_parallel_size 9 exceeds this model's 8 layers"):
        forecast_of(pipeline=9)


def test_the_table_has_a_line_for_each_split_and_says_why_others_are_none(plan):
    code, text, _ = plan("--gpus", "3", "--gpu-type", "H200")

    lines = text.splitlines()
    assert code == 0
    assert "3 H200: 139.8 GiB, 4800 GB/s, 989 TFLOP/s" in lines[0]
    assert [line.split()[:3] for line in lines[3:5]] == [["1", "1", "3"], ["1", "3", "1"]]
    assert lines[-2].startswith("Fastest for one request: DP 3")
    assert lines[-1].startswith("Not possible: TP 3. tensor_parallel_size 3 does not divide")
    assert lines[-1].endswith("It may be: 1, 2, 4, 8.")


def test_a_model_without_experts_cannot_be_divided_by_experts(plan):
    code, text, _ = plan("--enable-expert-parallel")

    assert code == 0
    assert text.splitlines()[-1].startswith("Not possible: one GPU. enable_expert_parallel divides experts, and this model has")


def test_a_table_says_how_much_memory_is_missing(plan):
    assert "iB too little" in plan("--gpu-memory-gib", "0.5")[1]


def test_json_has_the_same_figures(plan):
    found = json.loads(plan("--gpus", "2", "--gpu-link-gb-s", "7", "--json")[1])

    assert found["gpu"]["link_gb_s"] == 7
    assert [each["split"] for each in found["splits"]] == [
        {"tensor": 1, "pipeline": 1, "data": 2},
        {"tensor": 2, "pipeline": 1, "data": 1},
        {"tensor": 1, "pipeline": 2, "data": 1},
    ]
    assert found["splits"][1]["many"]["link_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpus", "0"), "gpus is 0; it must be at least 1"),
        (("--gpus", "2000"), "gpus is 2000; it must be at most 1024"),
        (("--context", "5000"), "context is 5000, but the model's longest is 4096"),
        (("--gpu-memory-gib", "nan"), "gpu_memory_gib is nan; it must be a positive number"),
        (("--gpu-memory-gib", "1e300"), "gpu_memory_gib is 1e+300; it must be at most 1e+09"),
        (("--max-num-batched-tokens", "9" * 400), "9; it must be at most 1000000000"),
        (("--gpu-memory-utilization", "1.5"), "gpu_memory_utilization is 1.5"),
    ],
)
def test_impossible_values_are_named(plan, arguments, words):
    code, _, said = plan(*arguments)

    assert code != 0
    assert words in said


def test_a_model_with_an_encoder_and_a_decoder_is_refused(tmp_path, capsys):
    save_whisper(tmp_path, num_seconds=1)

    assert main(["plan", str(tmp_path), "--context", "64"]) == 78
    assert "has an encoder and a decoder: it runs on one worker with the CPU device" in capsys.readouterr().err


def test_an_encoder_is_refused(plan):
    code, _, said = plan(architectures=["BertModel"], model_type="bert")

    assert code == 78
    assert "is an encoder" in said


def test_the_page_plans_a_gguf_file_with_the_mean_bytes_of_its_types(capsys, smollm2):
    command = shlex.split(Page.of("docs/parallel.md").block("tetrad plan"))

    assert main(command[1:]) == 0

    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("1   1   6")]
    assert float(row[3]) == pytest.approx(smollm2.stat().st_size / (1 << 20), rel=0.02)


def test_a_gguf_file_is_not_quantized_again(capsys, smollm2):
    assert main(["plan", str(smollm2), "--quantization", "fp8"]) != 0
    assert "quantization fp8 cannot be had of a .gguf file" in capsys.readouterr().err


def test_the_page_has_the_figures_of_the_model_of_links():
    """docs/parallel.md, by benchmarks/splits.py."""
    table = Page.of("docs/parallel.md").section("Plan a split").text
    lines = [line for line in table.splitlines() if line.startswith(("| NVLink", "| PCIe"))]
    rows = {line.split()[1]: re.findall(r"\d\.\d\d", line) for line in lines}
    found = {gpu: [case.rate.tokens_per_s for case in cases() if case.gpu == gpu] for gpu in ("H100", "H100-PCIe")}

    times = {gpu: [f"{rate / rates[0]:.2f}" for rate in rates[1:]] for gpu, rates in found.items()}
    assert rows == {"NVLink": times["H100"], "PCIe": times["H100-PCIe"]}


@pytest.mark.parametrize(("kind", "of_stages"), [("smolvlm", [1, 0, 1]), ("qwen3_vl", [1, 1, 1])])
def test_the_vision_model_counts_on_each_rank_that_encodes_images(kind, of_stages, tmp_path):
    """Of three stages, the first one reads images, with DeepStack also the next; the last one's rank answers for them."""
    save_vision_model(tmp_path, kind)
    values = json.loads((tmp_path / "config.json").read_text())
    config, cpu = read_config(values), CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch"))
    cpu.set_up()
    loaded = cpu.load_model(LoadRequest("m", tmp_path), lambda *_: None)
    plain, options = WeightBytes("float32", 4.0), {"cache_bytes": 4, "tower_bytes": 4 * count_tower(values)}

    whole = Stage(config, range(config.num_layers), plain, **options)
    parts = [range(1), range(1, 2), range(2, config.num_layers)]
    towers = [
        Stage(config, each, plain, **options).weights_bytes - Stage(config, each, plain, cache_bytes=4).weights_bytes
        for each in parts
    ]

    assert whole.weights_bytes == 4 * loaded.info.num_parameters
    assert towers == [options["tower_bytes"] * number for number in of_stages]


def test_a_table_names_the_vision_model(tmp_path, capsys):
    save_vision_model(tmp_path, "smolvlm")

    assert main(["plan", str(tmp_path), "--context", "64"]) == 0
    assert "Images: the vision model takes" in capsys.readouterr().out
