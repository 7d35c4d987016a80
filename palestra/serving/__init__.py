"""A server in OpenAI's format: it answers with a model of palestra, and tunes it."""
