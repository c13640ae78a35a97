"""Inference engines behind SGLang's HTTP API, and the client that speaks it."""
