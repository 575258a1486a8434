"""Items of a model with an encoder and a decoder: they have no tokens, and every step of a request reads its item."""

from tests.engine_core_svc.media.encoder_model import EncoderModel
from tetrad.engine_core_svc.core.media import MediaSpan
from tetrad.engine_core_svc.media.attended import AttendedMedia
from tetrad.engine_core_svc.media.store import MediaStore

NUM_EMBEDS = 10


def clip(identifier, **fields):
    """Return the audio of a prompt."""
    fields = {"content_hash": f"hash of {identifier}", "offset": 0, "length": 0, "num_embeds": NUM_EMBEDS} | fields
    return MediaSpan(identifier, "audio", **fields)


def attended_media(num_items, *, max_step_tokens=64, splits_prompts=True):
    """Return the media of a scheduler whose encoder cache has room for `num_items` items."""
    store = MediaStore(1 << 20)
    return AttendedMedia(store, num_items * NUM_EMBEDS, max_step_tokens=max_step_tokens, splits_prompts=splits_prompts)


class AttendedEncoder(EncoderModel):
    """See EncoderModel."""

    def _check(self, plan):
        """Check that the items of all requests of the plan are encoded."""
        self.spans |= {new.key: new.payload.media for new in plan.new_requests}
        for key in plan.num_scheduled_tokens():
            for span in self.spans[key]:
                assert span.identifier in self.cache, (
                    f"a plan has tokens that attend to {span.identifier}, which is not encoded"
                )
