"""``miles plugins new``: a package with one plugin that works, its test, its README and its CI, from templates."""
