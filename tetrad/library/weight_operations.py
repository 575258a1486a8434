"""Weight operations: the methods of LLM and LLMEngine that replace the weights of the served model.

They are vLLM's, with its backend "disk": new weights are a directory that every worker can read. `update_weights_from_disk` is
the whole update in one call.
"""

from tetrad.frontend.engine.admin_client import PauseMode, mode_of
from tetrad.frontend.engine.weights_client import WeightsClient
from tetrad.library.async_weight_operations import field_of
from tetrad.library.running_llm import RunningLLM
from tetrad.library.weight_files import NamedTensors


class WeightOperations:
    """The methods of LLM and LLMEngine."""

    _running: RunningLLM

    def update_weights_from_disk(self, model_path: str, weight_version: str | None = None, mode: PauseMode = "keep") -> str:
        """Replace the weights by those of another checkpoint of the same architecture and shapes; return their name.

        Requests need not be paused: the update is between two steps, and each token is computed with weights of one version.
        The prefix cache is cleared. Unfinished requests are computed again with the new weights. The directory must stay as it
        is until the next update: a worker that is restarted reads it again.

        Args:
            model_path: directory with the weights, or .gguf file, as the workers see it.
            weight_version: name of the weights, which outputs tell; None: that of the weights before.
            mode: "keep" keeps unfinished requests, "wait" lets running ones finish first, "abort" ends all.

        Raises:
            NotFound: there is no such directory.
            ModelError: the files do not fit the model, or cannot be loaded. The weights before serve.
            Unavailable: an engine core or a worker was lost, and did not come back.
        """
        return self._running.run(self._weights.update(model_path, weight_version, mode_of(mode)))

    def update_weights_from_tensors(
        self, named_tensors: NamedTensors, weight_version: str | None = None, mode: PauseMode = "keep"
    ) -> str:
        """Replace the weights by tensors of this program; return their name. The workers must be on this machine.

        The tensors are written to a temporary directory, which stays until the next update with tensors or the end of this
        object.

        Args:
            named_tensors: all tensors of the model, by the names of its files: pairs of names and torch tensors, or a mapping.
            weight_version, mode: see `update_weights_from_disk`.

        Errors: see `update_weights_from_disk`; InvalidRequest for something other than torch tensors.
        """
        files = self._running.llm.weight_files
        with files.written(named_tensors) as path:
            return self.update_weights_from_disk(path, weight_version, mode)

    def init_weight_transfer_engine(self, request: object) -> None:
        """Choose how weights reach the workers: `init_info` of the request may name the backend "disk" alone, and is optional.

        Args:
            request: vLLM's WeightTransferInitRequest, or its fields as a dict.
        """
        self._running.run(self._weights.init(field_of(request, "init_info")))

    def shutdown_weight_transfer_engine(self) -> None:
        """Do nothing: the backend "disk" holds nothing."""

    def start_weight_update(self) -> None:
        """Begin an update; drop one that was begun and not finished."""
        self._running.run(self._weights.start())

    def update_weights(self, request: object) -> None:
        """Name the new weights and check them; `finish_weight_update` applies them.

        Args:
            request: vLLM's WeightTransferUpdateRequest, or its fields as a dict; `update_info` is {"path": ...}.

        Errors: see `update_weights_from_disk`.
        """
        self._running.run(self._weights.check(field_of(request, "update_info")))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Apply the weights that `update_weights` has named. See `update_weights_from_disk`."""
        self._running.run(self._weights.finish(weight_version))

    def update_weight_version(self, new_version: str) -> None:
        """Give the present weights another name."""
        self._running.run(self._weights.name(new_version))

    def set_weight_version(self, weight_version: str) -> None:
        """Give the present weights another name."""
        self._running.run(self._weights.name(weight_version))

    def get_weight_version(self) -> str:
        """Return the name of the weights; "default" before the first update. Unavailable if engine cores differ."""
        return self._running.run(self._weights.version())

    @property
    def _weights(self) -> WeightsClient:
        return self._running.frontend.engine_admin.weights
