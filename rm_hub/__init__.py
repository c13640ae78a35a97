"""Built-in reward models, one module each."""
