"""The hub: discovery from metadata, references, lazy loading, attributed failures, on pluggy."""

from miles_core.plugins.hub import Hub
from miles_core.plugins.reference import PluginRef
from miles_core.plugins.registry import Registry

__all__ = ["Hub", "PluginRef", "Registry"]
