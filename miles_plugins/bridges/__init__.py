"""Built-in model bridges."""
