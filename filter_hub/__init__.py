"""Built-in filters, one module each."""
