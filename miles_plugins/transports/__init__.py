"""Built-in weight transports."""
