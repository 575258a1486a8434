"""GGUF files on the native kernels: mixed formats as in real files, and contradictory files."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.gguf_rows import random_rows
from tetrad.services.errors import InternalError, ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

Kind = gguf.GGMLQuantizationType
PROMPT_LOGPROBS = SamplingSpec(temperature=0.0, num_prompt_logprobs=0)
PROMPT = np.random.default_rng(1).integers(0, 288, 40).tolist()
LAYER_SHAPES = {
    "attn_norm": lambda h, i, q, k: (h,),
    "attn_q": lambda h, i, q, k: (q, h),
    "attn_k": lambda h, i, q, k: (k, h),
    "attn_v": lambda h, i, q, k: (k, h),
    "attn_output": lambda h, i, q, k: (h, q),
    "ffn_norm": lambda h, i, q, k: (h,),
    "ffn_gate": lambda h, i, q, k: (i, h),
    "ffn_up": lambda h, i, q, k: (i, h),
    "ffn_down": lambda h, i, q, k: (h, i),
}
ALL_Q4_0 = {name: Kind.Q4_0 for name in ("token_embd", *LAYER_SHAPES) if "norm" not in name}
Q4_K_M = dict.fromkeys(ALL_Q4_0, Kind.Q4_K) | dict.fromkeys(("token_embd", "attn_v", "ffn_down"), Kind.Q6_K)
WITHOUT_WEIGHTS = {Kind.Q8_1, Kind.Q1_0, Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64}
WEIGHT_TYPES = [kind for kind in Kind if kind not in WITHOUT_WEIGHTS]
MIXES = {
    # name: hidden, intermediate, formats by tensor, what is not named: F32
    "q4_k_m": (
        256,
        512,
        Q4_K_M,
    ),
    "gate and up differ": (256, 256, {"ffn_gate": Kind.Q4_0, "ffn_up": Kind.Q6_K, "ffn_down": Kind.Q5_K}),
    "gate in floats": (64, 96, {"ffn_gate": Kind.F16, "ffn_up": Kind.Q8_0, "ffn_down": Kind.Q5_0, "token_embd": Kind.F16}),
    "one of three in floats": (64, 64, {"attn_q": Kind.Q4_1, "attn_k": Kind.F16, "attn_v": Kind.Q5_1}),
    "three formats": (256, 64, {"attn_q": Kind.Q5_K, "attn_k": Kind.Q8_0, "attn_v": Kind.Q4_0, "output": Kind.Q4_K}),
    "sizes that 32 does not divide": (72, 100, {"attn_output": Kind.Q8_0, "token_embd": Kind.F16}),
    "sizes that 256 does not divide": (96, 288, ALL_Q4_0),
    "pairs of rare formats": (
        256,
        256,
        {"attn_q": Kind.BF16, "attn_v": Kind.MXFP4, "ffn_gate": Kind.IQ3_S, "ffn_up": Kind.Q8_K, "ffn_down": Kind.IQ2_S},
    ),
}


def write(path: Path, hidden: int, intermediate: int, kinds: dict[str, Kind], *, per_part: int = 0, **metadata: int) -> Path:
    """Write a random llama of two layers with 4 heads of 64 over 2 of keys; return its path, or that of its first part.

    Args:
        path: of the file, or what its parts are named after.
        hidden: size.
        intermediate: size.
        kinds: types by tensor; the others are F32.
        per_part: tensors of a part; 0: there is one file.
        metadata: overrides what the header says.
    """
    facts = {"embedding_length": hidden, "feed_forward_length": intermediate, "block_count": 2} | metadata
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=per_part)
    writer.add_context_length(1024)
    writer.add_embedding_length(facts["embedding_length"])
    writer.add_feed_forward_length(facts["feed_forward_length"])
    writer.add_block_count(facts["block_count"])
    writer.add_head_count(facts.get("head_count", 4))
    writer.add_head_count_kv(facts.get("head_count_kv", 2))
    writer.add_key_length(facts.get("key_length", 64))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if "sliding_window" in facts:
        writer.add_sliding_window(facts["sliding_window"])
    random = np.random.default_rng(0)

    def add(name: str, shape: tuple[int, ...]) -> None:
        values = random.standard_normal(shape, np.float32) * (0.12 if len(shape) == 2 else 0.2) + (len(shape) == 1)
        kind = kinds.get(name.split(".")[-2] if name.startswith("blk") else name.split(".")[0], Kind.F32)
        writer.add_tensor(name, random_rows(kind, values.astype(np.float32)), raw_dtype=kind)

    add("token_embd.weight", (288, hidden))
    add("output_norm.weight", (hidden,))
    if "output" in kinds:
        add("output.weight", (288, hidden))
    for layer in range(2):
        for name, shape in LAYER_SHAPES.items():
            add(f"blk.{layer}.{name}.weight", shape(hidden, intermediate, 256, 128))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-*-of-*.gguf"), default=path)


def loaded(path: Path, kernels: str, **options: object):
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels))
    return device.load_model(LoadRequest(str(path), path, **options), lambda *_: None)


def logprobs(model, make_driver) -> np.ndarray:
    driver = make_driver(model)
    driver.add(0, PROMPT, PROMPT_LOGPROBS)
    driver.step({0: len(PROMPT)})
    return driver.requests[0].prompt_logprobs[0][2][:, 0]


@pytest.mark.parametrize("name", MIXES)
def test_mixed_formats_are_what_they_are_dequantized(name, tmp_path, make_driver):
    """Against torch on the dequantized tensors; quantized activations differ by what 8 bits of 32 values do."""
    path = write(tmp_path / "m.gguf", *MIXES[name])
    plain, native = loaded(path, "torch", dtype="float32"), loaded(path, "native")
    expected = logprobs(plain, make_driver)

    np.testing.assert_allclose(logprobs(loaded(path, "native", dtype="float32"), make_driver), expected, atol=2e-4)
    found = logprobs(native, make_driver)
    assert np.abs(found - expected).mean() < 0.05 * expected.std()
    assert native.info.num_parameters == plain.info.num_parameters


@pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)
def test_every_type_is_what_it_is_dequantized_in_little_memory(kind, tmp_path, make_driver):
    """At most 2.5 times the tensors of the file."""
    kinds = dict.fromkeys(ALL_Q4_0, kind)
    path = write(tmp_path / "m.gguf", 256, 256, kinds)

    native = loaded(path, "native")

    expected = logprobs(loaded(path, "torch"), make_driver)
    assert np.abs(logprobs(native, make_driver) - expected).mean() < 0.05 * expected.std()
    stored = native.info.num_parameters * gguf.GGML_QUANT_SIZES[kind][1] / gguf.GGML_QUANT_SIZES[kind][0]
    assert native.info.weights_size_bytes < 2.5 * stored


def test_quantized_memory_stays_quantized(tmp_path):
    """Four bits and half a scale a weight; K-quants' scales take four times that of the file."""
    path = write(tmp_path / "m.gguf", 256, 512, ALL_Q4_0)

    model = loaded(path, "native")

    assert model.info.weights_size_bytes < 1.02 * model.info.num_parameters * (0.5 + 2 / 32)


@pytest.mark.parametrize(
    ("settings", "options", "dtype", "head_bytes"),
    [
        ({}, {}, "int8", 64 + 2 * 2),
        ({}, {"dtype": "float32"}, "float32", 64 * 4),
        ({"kv_cache_dtype": "float32"}, {}, "float32", 64 * 4),
        ({"kv_cache_dtype": "float16"}, {}, "float16", 64 * 2),
        ({"kv_cache_dtype": "float16"}, {"dtype": "float32"}, "float16", 64 * 2),
        ({"kv_cache_dtype": "int8"}, {"dtype": "float32"}, "int8", 64 + 2 * 2),
    ],
    ids=str,
)
def test_keys_and_values_take_8_bits_under_quantized_weights(settings, options, dtype, head_bytes, tmp_path, make_driver):
    path = write(tmp_path / "m.gguf", 64, 64, dict.fromkeys(ALL_Q4_0, Kind.Q8_0))
    expected = logprobs(loaded(path, "torch", dtype="float32"), make_driver)

    model = CpuDevice(WorkerSettings(threads=1, **settings)).load_model(
        LoadRequest(str(path), path, **options), lambda *_: None
    )

    [group] = model.kv_groups(16)
    assert (group.dtype, group.block_size_bytes) == (dtype, 2 * 16 * 2 * 2 * head_bytes)
    assert np.abs(logprobs(model, make_driver) - expected).mean() < 0.05 * expected.std()


@pytest.mark.parametrize(
    ("architecture", "dtype"), [("LlamaForCausalLM", "int8"), ("Qwen2ForCausalLM", "float16"), ("Qwen3ForCausalLM", "float16")]
)
def test_keys_with_biases_or_norms_keep_float16(architecture, dtype, tmp_path):
    """Their dimensions differ too much in size to share a scale."""
    save_tiny(tmp_path, tiny_config(architecture))

    model = CpuDevice(WorkerSettings(threads=1)).load_model(LoadRequest("m", tmp_path, quantization="int8"), lambda *_: None)

    assert model.kv_groups(16)[0].dtype == dtype


def test_progress_of_mixed_formats_ends_at_the_files_size(tmp_path):
    path, told = write(tmp_path / "m.gguf", *MIXES["gate and up differ"]), []

    CpuDevice(WorkerSettings(threads=1)).load_model(
        LoadRequest(str(path), path), lambda done, total: told.append((done, total))
    )

    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    "metadata",
    [
        {"embedding_length": 512},
        {"embedding_length": 128},
        {"feed_forward_length": 1024},
        {"feed_forward_length": 256},
        {"block_count": 3},
        {"head_count": 8},
        {"head_count": 2, "head_count_kv": 1},
        {"head_count_kv": 4},
        {"key_length": 32},
        {"key_length": 16},
        {"key_length": 6},
        {"head_count": 1, "head_count_kv": 1, "key_length": 2048},
    ],
    ids=str,
)
@pytest.mark.parametrize("kinds", ["q4_k_m", "gate and up differ"])
def test_a_header_that_contradicts_quantized_tensors_is_one_line(metadata, kinds, tmp_path):
    hidden, _, formats = MIXES[kinds]
    path = write(tmp_path / "m.gguf", hidden, 512, formats, **metadata)

    with pytest.raises(ModelError) as caught:
        loaded(path, "auto")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"])
@pytest.mark.parametrize("shape", [(64, 256), (640, 256), (256, 768), (1, 512), (4, 256)], ids=str)
def test_a_quantized_tensor_of_another_shape_is_one_line(name, shape, tmp_path, monkeypatch):
    monkeypatch.setitem(LAYER_SHAPES, name, lambda *_: shape)
    hidden, intermediate, kinds = MIXES["q4_k_m"]
    path = write(tmp_path / "m.gguf", hidden, intermediate, kinds)

    with pytest.raises(ModelError, match=r"shape|rows") as caught:
        loaded(path, "native")
    assert "\n" not in caught.value.message


def test_quantized_norms_and_biases_are_dequantized(tmp_path, make_driver):
    """A vector is no matrix: nothing of it may be taken for one."""
    path = write(tmp_path / "m.gguf", 256, 256, {"attn_norm": Kind.Q8_0, "ffn_norm": Kind.Q8_0, "attn_q": Kind.Q8_0})

    expected = logprobs(loaded(path, "torch", dtype="float32"), make_driver)

    assert np.abs(logprobs(loaded(path, "native"), make_driver) - expected).mean() < 0.05 * expected.std()


def test_a_scale_that_is_not_finite_fails_nobody_else(tmp_path, make_driver):
    """A broken row of the embedding is the trouble of whoever asks for its token."""
    path = write(tmp_path / "m.gguf", 64, 64, {"token_embd": Kind.Q8_0, "output": Kind.Q8_0})
    reader = gguf.GGUFReader(path, "r+")
    [embedding] = [tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"]
    embedding.data[7, :2] = np.array([np.nan], np.float16).view(np.uint8)
    reader.data.flush()
    driver = make_driver(loaded(path, "native"))
    driver.add(0, [1, 2, 3], PROMPT_LOGPROBS)
    driver.add(1, [1, 7, 3], PROMPT_LOGPROBS)

    result = driver.runner.execute(driver.plan({0: 3, 1: 3}))

    [(handle, error)] = result.failures
    assert (handle, type(error)) == (1, InternalError)
    assert result.handles.tolist() == [0]
    assert np.isfinite(next(item for item in result.prompt_logprobs if item.handle == 0).rows.logprobs).all()
