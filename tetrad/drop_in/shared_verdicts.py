"""Verdicts of common arguments of methods in several classes."""

from tetrad.services.verdicts import ignored, refused

NO_CONNECTOR = ignored(False, "The blocks in host memory (`swap_space`) are always reset, too.")
NO_HINTS = refused(None, "The KV cache takes no hints.")
NO_PARSER_OPTIONS = refused(None, "The prompt shows whether reasoning may follow, and `reasoning_ended` overrides it.")
NO_REASONING = ignored(None, "A pooling request has no reasoning.")
PROMPT_ADAPTER = refused(None, "A prompt adapter is a lora_request here: LoRARequest(name, id, path).")
NO_SESSION = refused(None, "Requests of a conversation are not kept together.")
ONE_ID = ignored(False, "A request has one id.")
USAGE = ignored(None, "Nothing is reported to anybody.")
