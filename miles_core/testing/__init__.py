"""For plugin authors: a pytest plugin with fixtures, and one conformance suite per kind of plugin."""
