"""/v1/audio: transcriptions and translations of recordings, in OpenAI's forms."""
