"""One typed model for the config file, and how a file and ``--set`` values become it."""
