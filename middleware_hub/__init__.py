"""Built-in router middlewares, one module each."""
