"""The hub: discovery from metadata, references, lazy loading, attributed failures, on pluggy.

To read it, follow a plugin: ``installed`` says which distributions there are and which may take part, from metadata;
``catalog`` and ``registry`` gather what they offer; ``resolve`` chooses by name; ``loading`` imports, checks and
validates options; ``hub`` is all of it. Beside that path are ``lifecycle``, the hooks, and ``functions``, those that a
key of the config names.
"""

from miles_core.plugins.hub import Hub
from miles_core.plugins.reference import PluginRef
from miles_core.plugins.registry import Registry

__all__ = ["Hub", "PluginRef", "Registry"]
