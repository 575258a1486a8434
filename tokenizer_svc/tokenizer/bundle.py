"""Bundle: packs the tokenizer's files into one zip archive, for engine cores and gateways without a model directory.

Called by Tokenizer. The same tokenizer always gives the same bytes: the archive has no times, and its order is fixed.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer

CHUNK_BYTES = 64 << 10
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """A zip archive and its SHA-256 in hexadecimal."""

    data: bytes
    sha256: str

    @classmethod
    def pack(cls, files: Mapping[str, bytes]) -> "Bundle":
        """Return an archive of these files, given by name."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in sorted(files.items()):
                entry = zipfile.ZipInfo(name, date_time=_EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data, compress_type=zipfile.ZIP_DEFLATED, compresslevel=6)
        packed = buffer.getvalue()
        return cls(packed, hashlib.sha256(packed).hexdigest())

    def chunks(self) -> Iterator[bytes]:
        """Yield the archive in pieces of CHUNK_BYTES."""
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


def bundle_files(loaded: LoadedTokenizer) -> dict[str, bytes]:
    """Return the files that describe a tokenizer, by name."""
    files = {
        "tokenizer.json": loaded.rust.to_str().encode(),
        "tokenizer_config.json": _json(_tokenizer_config(loaded)),
        "config.json": _json(loaded.config),
    }
    preprocessor = loaded.image_processor or loaded.feature_extractor
    if preprocessor:
        files["preprocessor_config.json"] = _json(preprocessor)
    if loaded.image_processor and loaded.video_processor:
        files["video_preprocessor_config.json"] = _json(loaded.video_processor)
    if preprocessor and loaded.processor:
        files["processor_config.json"] = _json(loaded.processor)
    if loaded.generation_config:
        files["generation_config.json"] = _json(loaded.generation_config)
    return files


def hash_files(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, in hexadecimal."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _tokenizer_config(loaded: LoadedTokenizer) -> dict[str, Any]:
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **loaded.special.named()}
    if loaded.max_length is not None:
        config["model_max_length"] = loaded.max_length
    templates = loaded.chat_templates
    if set(templates) == {"default"}:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in sorted(templates.items())]
    return config


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True).encode("utf-8", "surrogatepass")
