"""Built-in plugins, registered through the same entry points as a stranger's package."""
