"""The hub: discovery from metadata, references, lazy loading, attributed failures, on pluggy."""
