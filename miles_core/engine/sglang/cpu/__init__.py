"""SGLang without a GPU: its own environment, what stands in for the GPU's parts, and what a server needs to be told."""
