"""Where the boxes of checkpoint tensors lie in the parameters of a process, by the mapping of a bridge. No torch."""

from miles_core.lib.layout.build import build_layout
from miles_core.lib.layout.cut import cut_placement
from miles_core.lib.layout.tensors import parameter_table, view

__all__ = ["build_layout", "cut_placement", "parameter_table", "view"]
