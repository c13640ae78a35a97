"""The composition root: it wires the planes and holds the loop."""
