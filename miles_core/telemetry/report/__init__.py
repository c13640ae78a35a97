"""The report of a run: one HTML page with plots, config and a browser of episodes, which needs no network."""
