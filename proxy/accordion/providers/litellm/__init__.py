"""Translation to other providers by LiteLLM, and all patches of it."""
