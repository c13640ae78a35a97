"""An engine for a laptop: a Hugging Face model on CPU behind SGLang's HTTP API."""
