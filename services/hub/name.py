"""Hub name: splits a model's name on the Hugging Face hub into repository and GGUF file.

Forms: "org/name", "org/name:FILE.gguf", "org/name:QUANTIZATION" (as in llama.cpp and Ollama), each optionally after the hub's
address.
"""

import re
from dataclasses import dataclass

_FORM = re.compile(
    r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?"
    r"(?P<repository>[A-Za-z0-9][\w.\-]*(?:/[\w.\-]+)?)"
    r"(?::(?P<gguf>[\w.\-]+(?:/[\w.\-]+)*))?"
)


@dataclass(frozen=True, slots=True)
class HubName:
    """The name of a model on the hub.

    Attributes:
        repository: "org/name".
        gguf: file name or quantization of the GGUF file in it; "": none.
    """

    repository: str
    gguf: str = ""

    def __str__(self) -> str:
        return f"{self.repository}:{self.gguf}" if self.gguf else self.repository


def parse_hub_name(text: str) -> HubName | None:
    """Return the name; None if the text cannot be one, for example the path of a .gguf file."""
    match = _FORM.fullmatch(text)
    if match is None or match["repository"].endswith(".gguf"):
        return None
    return HubName(match["repository"], match["gguf"] or "")
