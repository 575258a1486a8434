"""Model request: finds the files of a model and of its draft model, and checks that the device supports both.

A Hub name is downloaded, its configuration first: a model that cannot be served costs no download of weights.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.services.hub.model_files import resolve_model
from tetrad.worker_svc.checkpoint.model_config import apply_overrides
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.families.check import check_model
from tetrad.worker_svc.families.eagle3 import eagle3_config


def model_request(
    model: str,
    *,
    device: str,
    trusts_code: bool,
    draft_model: str = "",
    draft_method: str = "",
    hf_overrides_json: str = "",
    **options: Any,
) -> LoadRequest:
    """Return the request that a device gets to load a model.

    Args:
        model: path or Hub name.
        device: name of the device.
        trusts_code: whether code from a model's files may run.
        draft_model: path or Hub name of the draft model or draft head; empty: none, or a head inside the model's files.
        draft_method, hf_overrides_json, options: fields of LoadRequest.

    Raises NotFound or ModelError if files are missing or the device does not support a model.
    """

    def check(config: Mapping[str, Any]) -> None:
        check_model(config, device, trusts_code=trusts_code)

    def check_overridden(config: Mapping[str, Any]) -> None:
        check(apply_overrides(config, hf_overrides_json))

    def check_head(config: Mapping[str, Any]) -> None:
        eagle3_config(config)

    path = resolve_model(model, check=check_overridden)
    check_draft = check_head if draft_method == "eagle3" else check
    draft_path = resolve_model(draft_model, check=check_draft) if draft_model else None
    return LoadRequest(
        model=model,
        path=path,
        draft_path=draft_path,
        draft_method=draft_method,
        hf_overrides_json=hf_overrides_json,
        **options,
    )
