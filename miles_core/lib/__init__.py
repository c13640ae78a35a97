"""What core and hubs both use and no library offers; imports nothing above ``types``."""
