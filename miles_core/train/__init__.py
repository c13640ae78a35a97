"""From groups to gradients: objective, packing, replay, and the torch backend."""
