"""SGLang as an engine: real servers behind the HTTP API that the client speaks."""
