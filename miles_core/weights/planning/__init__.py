"""Layouts and plans of models and parallel sizes that exist only on paper: ``config.json`` and no weights."""
