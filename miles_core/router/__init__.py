"""A streaming proxy in front of the engines, with a middleware stack from config."""
