"""Documentation of Ollama's API: example answers and the form of its errors."""

from tetrad.frontend.api.http.documentation.routes import ErrorForm
from tetrad.frontend.api.http.documentation.schemas import EXAMPLE_MODEL, EXAMPLE_TEXT, field, obj
from tetrad.frontend.api.http.ollama.errors import ollama_error

ERROR = obj("*", error=field("string", "What is wrong."))
ERRORS = ErrorForm(ERROR, ollama_error)

_WHEN = "2026-01-01T00:00:00Z"
_HEAD = {"model": EXAMPLE_MODEL, "created_at": _WHEN}
_END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 95_000_000,
    "load_duration": 0,
    "prompt_eval_count": 36,
    "prompt_eval_duration": 40_000_000,
    "eval_count": 8,
    "eval_duration": 55_000_000,
}
_DETAILS = {"parent_model": "", "quantization_level": "Q4_1"}

GENERATED = {**_HEAD, "response": EXAMPLE_TEXT, **_END}
CHATTED = {**_HEAD, "message": {"role": "assistant", "content": EXAMPLE_TEXT}, **_END}
EMBEDDED = {
    "model": "all-minilm-l6-v2",
    "embeddings": [[0.013, -0.021]],
    "total_duration": 5_000_000,
    "load_duration": 0,
    "prompt_eval_count": 9,
}
ONE_EMBEDDING = {"embedding": [0.013, -0.021]}
_NAMES = {"name": EXAMPLE_MODEL, "model": EXAMPLE_MODEL, "digest": "9f2d" * 16}
ENTRIES = {"models": [_NAMES | {"modified_at": _WHEN, "details": _DETAILS}]}
RUNNING = {"models": [_NAMES | {"details": _DETAILS, "context_length": 8192}]}
SHOWN = {
    "modified_at": _WHEN,
    "template": "{% for message in messages %}...{% endfor %}",
    "parameters": "temperature 0.7\ntop_p 0.9",
    "details": _DETAILS,
    "model_info": {"general.architecture": "tetrad", "general.basename": EXAMPLE_MODEL, "tetrad.context_length": 8192},
    "capabilities": ["completion", "tools"],
}
