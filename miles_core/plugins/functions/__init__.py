"""Single functions that a key of the config names: a built-in name or ``module:attribute``."""
