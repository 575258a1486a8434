"""Call ids: makes ids of calls in OpenAI's form, which most chat templates accept."""

import uuid


class OpenAICallIds:
    """The base of tool formats whose models' templates accept any ids. See ToolFormat (interface.py)."""

    @staticmethod
    def new_call_id(name: str, place: int) -> str:  # noqa: ARG004 - of the interface
        """Return a new id; the arguments have no effect."""
        return f"call_{uuid.uuid4().hex[:24]}"
