"""The ``miles`` command, one module per sub-command."""
