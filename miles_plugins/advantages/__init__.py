"""Built-in advantage estimators."""
