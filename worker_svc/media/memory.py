"""Memory of media: the encoder cache, and the activations of the tower."""

from tetrad.worker_svc.core.device import LoadedModel
from tetrad.worker_svc.core.media import TakesMedia


def media_bytes(model: LoadedModel, max_num_batched_tokens: int, max_num_encoder_tokens: int) -> int:
    """Return the bytes that images take besides the tower's weights; 0 if the model takes only text.

    Args:
        model: the loaded model.
        max_num_batched_tokens: tokens of the longest step.
        max_num_encoder_tokens: embeddings of the largest item. The larger one of both is the size of the encoder cache.
    """
    if not max_num_encoder_tokens or not isinstance(model, TakesMedia) or model.media is None:
        return 0
    tower = model.media.tower
    # The engine core has room for further items of a tower whose output is attended to, and knows their size.
    rows = max_num_encoder_tokens if tower.is_attended else max(max_num_batched_tokens, max_num_encoder_tokens)
    return rows * tower.embed_bytes + tower.activation_bytes(max_num_encoder_tokens)
