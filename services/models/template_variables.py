"""Template variables: the names that a server's defaults and requests must not give to variables of a chat template.

Used by the frontend, for the server's defaults, and by the tokenizer service, for those of a request.
"""

RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
"""Arguments of rendering, which a request sets in fields of its own or not at all."""
