"""From a target to a checked factory: import, what its import may not do, contract, signatures, options."""
