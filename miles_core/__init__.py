"""The core of miles-hub: it runs rollouts, trains on them and moves weights; plugins do the rest."""

__version__ = "0.1.0"
