"""Paths of the OpenAI dialect; a batch names them too."""

MODELS, COMPLETIONS, CHAT = "/v1/models", "/v1/completions", "/v1/chat/completions"
