"""The hooks in the life of a run: their specifications, who implements them, how they are called."""
