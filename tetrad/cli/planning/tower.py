"""Tower: counts the weights of the vision or audio model of a model that reads media, from its config only."""

from collections.abc import Mapping
from typing import Any

from tetrad.worker_svc.families.towers import media_read_by
from tetrad.worker_svc.families.values import architecture_of


def count_tower(config: Mapping[str, Any]) -> int:
    """Return the number of weights; 0: the model takes only text. Raises ModelError if the config is wrong."""
    if not media_read_by(architecture_of(config)):
        return 0
    from tetrad.worker_svc.media.tower_loading import count_parameters  # its packages take seconds to import

    return count_parameters(config)
