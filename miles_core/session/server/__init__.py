"""The session server: what OpenAI's and Anthropic's SDKs speak, over sessions that keep every token."""
