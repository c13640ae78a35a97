"""``python -m miles_core.cli``."""

from miles_core.cli.main import main

main()
