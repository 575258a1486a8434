"""Small valid model files, and hostile variations of them, for test_files.py."""

import copy
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import save
from tokenizers import pre_tokenizers

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
SHAPES = {
    "model.embed_tokens.weight": (272, 32),
    "model.norm.weight": (32,),
    "model.layers.0.input_layernorm.weight": (32,),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.k_proj.weight": (16, 32),
    "model.layers.0.self_attn.v_proj.weight": (16, 32),
    "model.layers.0.self_attn.o_proj.weight": (32, 32),
    "model.layers.0.post_attention_layernorm.weight": (32,),
    "model.layers.0.mlp.gate_proj.weight": (32, 32),
    "model.layers.0.mlp.up_proj.weight": (32, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 32),
}
GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    **{
        f"model.layers.0.{theirs}.weight": f"blk.0.{ours}.weight"
        for theirs, ours in {
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
    },
}
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<s>", "</s>", *LETTERS, "hi", *(f"<{i}>" for i in range(272 - len(LETTERS) - 3))]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def write_gguf(path: Path) -> bytes:
    """Write a whole model, with a quantized tensor in it, and return its bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    for name, shape in SHAPES.items():
        values = np.ones(shape, np.float32)
        if name.endswith("up_proj.weight"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(GGUF_NAMES[name], gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(GGUF_NAMES[name], values)
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def directory_files() -> dict[str, bytes]:
    """Return the files of the same model as Hugging Face keeps them, in two shards."""
    tensors = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": TOKENS[i], "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i in range(2)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(TOKENS)}, "merges": [["h", "i"]]},
    }
    names = list(SHAPES)
    shards = {"model-1.safetensors": names[:4], "model-2.safetensors": names[4:]}
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    tokenizer_config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "chat_template": TEMPLATE,
        "model_max_length": 128,
    }
    texts = {
        "config.json": CONFIG,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        "special_tokens_map.json": {"pad_token": "</s>"},
        "generation_config.json": {"eos_token_id": [1], "temperature": 0.5},
        "model.safetensors.index.json": index,
    }
    return {file: save({name: tensors[name] for name in held}) for file, held in shards.items()} | {
        name: json.dumps(value).encode() for name, value in texts.items()
    }


EDGES = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    9,
    12,
    13,
    31,
    32,
    33,
    255,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63,
    2**64 - 1,
]
"""Numbers at which readers go wrong: types and counts, and what claims more than there is."""


@st.composite
def mutations(draw: st.DrawFn, data: bytes, focus: int) -> bytes:
    """Return the bytes with one to four changes; most fall within the first `focus` bytes, where the header is."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        end = min(len(changed), focus) if draw(st.integers(0, 9)) else len(changed)
        at = draw(st.integers(0, max(0, end - 1)))
        kind = draw(st.sampled_from(("number", "number", "byte", "cut", "insert", "remove", "repeat", "noise")))
        if kind == "number":
            width, code = draw(st.sampled_from(((4, "<I"), (8, "<Q"), (2, "<H"))))
            changed[at : at + width] = struct.pack(code, draw(st.sampled_from(EDGES)) % (1 << 8 * width))
        elif kind == "byte":
            changed[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "cut":
            del changed[at:]
        elif kind == "insert":
            changed[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "remove":
            del changed[at : at + draw(st.sampled_from((1, 2, 4, 8, 64)))]
        elif kind == "repeat":
            changed[at:at] = changed[at : at + draw(st.sampled_from((8, 32, 256)))] * draw(st.integers(1, 20))
        else:
            changed[at : at + 32] = draw(st.binary(min_size=32, max_size=32))
    return bytes(changed)


_NAMES = st.text(max_size=3)
_ODD = st.one_of(
    st.sampled_from(
        [None, True, "", "x", [], {}, [[]], {"a": {}}, 0, -1, 1.5, 1e308, 2**31, 2**63, 2**200, "9" * 5000, "\ud83d"]
    ),
    st.sampled_from(["../../etc/passwd", "/etc/passwd", "..", ".", "a\0b", "model-1.safetensors/../x", "/dev/zero", "\n\n"]),
    st.just(float("inf")) | st.just(float("nan")),
    st.integers(-5, 300),
    st.text(max_size=8),
    st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner)),
)
# Changes are made in place, and what is sampled must stay what it is.
ODD_VALUES = _ODD.map(copy.deepcopy)


@st.composite
def json_mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """Return a JSON text with one to three values replaced, removed, added or nested; now and then its bytes changed."""
    if not draw(st.integers(0, 4)):
        return draw(mutations(data, len(data)))
    root = [json.loads(data)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _choose_place(draw, root)
        kind = draw(st.sampled_from(("replace", "replace", "remove", "add", "nest")))
        if kind == "remove" and holder is not root:
            del holder[key]
        elif kind == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = draw(ODD_VALUES)
        elif kind == "nest":
            for _ in range(draw(st.sampled_from((1, 50, 500)))):
                holder[key] = [holder[key]]
        else:
            holder[key] = draw(ODD_VALUES)
    return json.dumps(root[0]).encode("utf-8", "surrogatepass")


def _choose_place(draw: st.DrawFn, root: list[Any]) -> tuple[Any, Any]:
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 3)):
        holder = holder[key]
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
    return holder, key
